"""What every file of the project keeps to."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

SOURCES = ("app", "workers", "admin")
MAX_LINES = 400
REASON = "# Long because: "


@pytest.fixture(scope="session")
def tracked(repository: Path) -> list[Path]:
    """The files that are in the repository, or will be; none where this is no git checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=repository, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("this is no git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := repository / name).is_file()]


def sources(repository: Path) -> list[Path]:
    return [path for folder in SOURCES for path in (repository / folder).rglob("*.py")]


def test_a_long_file_says_why(repository: Path) -> None:
    silent = []
    for path in sources(repository):
        lines = path.read_text("utf-8").splitlines()
        if len(lines) > MAX_LINES and not any(line.startswith(REASON) for line in lines[:20]):
            silent.append(f"{path.relative_to(repository)}: {len(lines)} lines")
    assert silent == []


def test_no_module_is_a_drawer_for_odds_and_ends(repository: Path) -> None:
    drawers = {"utils", "util", "helpers", "misc", "common"}
    assert [path for path in sources(repository) if path.stem in drawers or path.parent.name in drawers] == []


def test_no_module_reads_the_environment_when_it_is_imported(repository: Path) -> None:
    """The settings are read once, by whoever starts a process; ``admin/gunicorn.py`` is such a start."""
    reads = re.compile(r"^\S.*\bos\.(environ|getenv)\b")
    found = [
        f"{path.relative_to(repository)}:{number}"
        for path in sources(repository)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if reads.match(line) and not line.startswith(("def ", "#"))
    ]
    assert found == []


def test_no_file_names_a_place_of_one_machine(repository: Path, tracked: list[Path]) -> None:
    # Joined here, so that this file does not hold what it looks for.
    homes = ["/" + "root/", "/" + "home/", "/" + "Users/", "/" + "work/", str(repository), str(Path.home())]
    hosts = ["pypi" + ".org", "python" + "hosted.org", "registry." + "npmjs"]
    found = []
    for path in tracked:
        text = path.read_bytes().decode("utf-8", "replace")
        found += [f"{path.relative_to(repository)}: {word}" for word in {*homes, *hosts} if word in text]
    assert found == []


def test_text_files_end_with_one_line_end_and_have_no_spaces_before_it(repository: Path, tracked: list[Path]) -> None:
    bad = []
    for path in tracked:
        data = path.read_bytes()
        if not data or b"\0" in data or path.suffix in {".png", ".svg"} or path.name == "LICENSE":
            continue
        if not data.endswith(b"\n") or data.endswith(b"\n\n") or re.search(rb"[ \t]\n", data):
            bad.append(str(path.relative_to(repository)))
    assert bad == []
