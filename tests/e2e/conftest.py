"""The tests of the pages are collected where `make acceptance` has installed what drives their browser."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("playwright") else ["test_pages.py"]
