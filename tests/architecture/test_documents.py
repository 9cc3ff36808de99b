"""The documents tell the truth about commands, files and links."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from app.cli import main

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def documents(repository: Path) -> list[Path]:
    return [*repository.glob("*.md"), *(repository / "docs").rglob("*.md"), *(repository / "examples").rglob("*.md")]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def shell_lines(text: str) -> list[str]:
    """The commands of a page's shell blocks, continued lines joined."""
    blocks = [block for language, block in BLOCK.findall(text) if language in ("sh", "bash", "console")]
    return [
        line
        for block in blocks
        for line in block.replace("\\\n", " ").splitlines()
        if line and not line.startswith("#")
    ]


def targets(repository: Path) -> set[str]:
    return set(re.findall(r"^([a-z]+):", (repository / "Makefile").read_text("utf-8"), re.M))


def test_the_readme_opens_with_the_two_commands(repository: Path) -> None:
    text = (repository / "README.md").read_text("utf-8")
    assert text.startswith("# Rolecall\n")
    assert [line.split("#")[0].strip() for line in shell_lines(text)[:2]] == ["make up", "make test"]
    assert text.index("make up") < 600


def test_commands_in_the_documents_exist(repository: Path) -> None:
    known, unknown = targets(repository), []
    for path in documents(repository):
        for line in shell_lines(path.read_text("utf-8")):
            for call in re.findall(r"(?:^|[\s;&|(/])(make|rolecall)[ ]+([a-z][a-z-]*)", line):
                if not (call[1] in known if call[0] == "make" else call[1] in main.commands):
                    unknown.append(f"{path.name}: {' '.join(call)}")
    assert unknown == []


def test_options_of_rolecall_in_the_documents_exist(repository: Path) -> None:
    unknown = []
    for path in documents(repository):
        for line in shell_lines(path.read_text("utf-8")):
            words = shlex.split(line.partition(" | ")[0], comments=True)
            if len(words) > 1 and Path(words[0]).name == "rolecall" and words[1] in main.commands:
                options = {name for parameter in main.commands[words[1]].params for name in parameter.opts}
                unknown += [
                    f"{path.name}: {line}" for word in words[2:] if word.startswith("-") and word not in options
                ]
    assert unknown == []


def test_deployments_in_the_readme_are_examples_or_made_there(repository: Path) -> None:
    text = (repository / "README.md").read_text("utf-8")
    made = set(re.findall(r'^\{"id": "([\w.-]+)"', text, re.M))
    for path in (repository / "examples" / "deployments").glob("*.json"):
        made.add(json.loads(path.read_text("utf-8")).get("id", path.stem))
    calls = re.findall(r"/deployments/([\w.-]+)/|rolecall (?:run|resolve) ([\w.-]+)", "\n".join(shell_lines(text)))
    named = {name for call in calls for name in call if name}
    assert named
    assert named <= made


def test_links_lead_somewhere(repository: Path) -> None:
    broken = []
    for path in documents(repository):
        for target in LINK.findall(BLOCK.sub("", path.read_text("utf-8"))):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name) if name else path
            if not file.exists() or (
                anchor and file.suffix == ".md" and anchor not in anchors(file.read_text("utf-8"))
            ):
                broken.append(f"{path.relative_to(repository)}: {target}")
    assert broken == []


@pytest.mark.parametrize("group", ["dependencies", "embedded", "test", "browser"])
def test_every_dependency_has_its_reason_and_is_locked(repository: Path, group: str) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))["project"]
    needed = project[group] if group == "dependencies" else project["optional-dependencies"][group]
    page = (repository / "docs" / "adr" / "0001-dependencies.md").read_text("utf-8")
    locked = {
        line.partition("==")[0].lower()
        for line in (repository / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    for requirement in needed:
        name = re.match(r"[\w.-]+", requirement)
        assert name
        assert f"| {name[0]} |" in page, f"docs/adr/0001-dependencies.md does not say why {name[0]} is there"
        assert name[0].lower() in locked, f"constraints.txt does not lock {name[0]}; run make lock"


def test_the_lock_holds_names_and_versions_alone(repository: Path) -> None:
    lines = (repository / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#") and not re.fullmatch(r"[\w.-]+==[\w.+!-]+", line)] == []


def test_decisions_are_numbered_without_doubles_and_say_where_they_stand(repository: Path) -> None:
    pages = sorted((repository / "docs" / "adr").glob("*.md"))
    numbers = [path.name[:4] for path in pages]
    assert len(set(numbers)) == len(numbers)
    for path in pages:
        assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", path.name)


def test_the_changelog_tells_of_the_version_of_the_project(repository: Path) -> None:
    version = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    text = (repository / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## (\[{re.escape(version)}\]|\[?Unreleased\]?)", text, re.M)
