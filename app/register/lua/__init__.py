"""The register's scripts, one file for each call; ``_register.lua`` has what they share."""

from __future__ import annotations

from importlib import resources


def source(name: str) -> str:
    """Return the text of script ``name`` as it is sent: its flags, the shared part, its own part."""
    flags, _, body = _read(name).partition("\n")
    return f"{flags}\n{_read('_register')}{body}"


def _read(name: str) -> str:
    return (resources.files(__name__) / f"{name}.lua").read_text(encoding="utf-8")
