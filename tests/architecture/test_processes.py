"""Procfile, compose file, Makefile and documents speak of the same processes and commands."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.config import load_settings
from app.stack.procfile import Entry, read_procfile

PROCESSES = ["redis", "mongo", "admin", "dispatcher", "worker", "gpu-worker"]


@pytest.fixture(scope="session")
def entries(repository: Path) -> dict[str, Entry]:
    return {entry.name: entry for entry in read_procfile(repository / "Procfile")}


@pytest.fixture(scope="session")
def compose(repository: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((repository / "compose.yaml").read_text("utf-8"))
    return loaded


def role_of(entry: Entry) -> str:
    match = re.match(r"SERVICE_ROLE=(\S+) ", entry.command)
    return match[1] if match else ""


def test_the_procfile_has_the_processes_of_the_design_and_stops_them_in_order(entries: dict[str, Entry]) -> None:
    assert list(entries) == PROCESSES
    ranks = {name: entry.rank for name, entry in entries.items()}
    assert (
        ranks["worker"]
        == ranks["gpu-worker"]
        < ranks["dispatcher"]
        == ranks["admin"]
        < ranks["redis"]
        == ranks["mongo"]
    )


def test_every_process_has_a_valid_role(entries: dict[str, Entry]) -> None:
    roles = {name: role_of(entry) for name, entry in entries.items() if entry.answers_for_a_role}
    assert roles == {
        "admin": "admin-api", "dispatcher": "dispatcher", "worker": "worker", "gpu-worker": "gpu-worker",
    }  # fmt: skip
    for role in roles.values():
        assert load_settings({"SERVICE_ROLE": role}).service_role == role


def test_every_program_of_the_procfile_is_installed(entries: dict[str, Entry]) -> None:
    for entry in entries.values():
        program = next(word for word in shlex.split(entry.command) if "=" not in word)
        assert Path(sys.executable).with_name(program).exists(), entry.command


def test_the_operations_page_has_every_process_with_its_command(repository: Path, entries: dict[str, Entry]) -> None:
    page = (repository / "docs" / "operations.md").read_text("utf-8")
    for entry in entries.values():
        assert f"| `{entry.name}` | `{entry.command}` |" in page


def test_the_compose_file_is_valid_by_the_compose_specification(repository: Path) -> None:
    """By the schema that check-jsonschema carries; nothing is downloaded."""
    check = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.compose-spec"]
    result = subprocess.run(
        [*check, "compose.yaml"], cwd=repository, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_faulty_compose_file_would_be_found(repository: Path, tmp_path: Path, compose: dict[str, Any]) -> None:
    compose = {**compose, "services": {**compose["services"], "admin": {"image": "x", "healthchek": {}}}}
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(compose))
    check = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.compose-spec"]
    result = subprocess.run(
        [*check, "compose.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 1
    assert "healthchek" in result.stdout


def test_the_compose_file_runs_what_the_procfile_runs(compose: dict[str, Any], entries: dict[str, Entry]) -> None:
    services = compose["services"]
    assert list(services) == PROCESSES
    for name in ("dispatcher", "worker", "gpu-worker"):
        assert f"SERVICE_ROLE={services[name]['environment']['SERVICE_ROLE']} {services[name]['command']}" == (
            entries[name].command
        )
    assert services["admin"]["command"][0] == "gunicorn"
    assert services["admin"]["command"][-1] == entries["admin"].command.split()[-1]


def test_every_service_of_the_compose_file_is_watched_stops_in_time_and_is_on_loopback_alone(
    compose: dict[str, Any],
) -> None:
    for name, service in compose["services"].items():
        assert "test" in service["healthcheck"], name
        assert re.fullmatch(r"\d+s", service["stop_grace_period"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        if name not in ("redis", "mongo"):
            assert set(service["depends_on"]) == {"redis", "mongo"}
    grace = int(compose["services"]["worker"]["stop_grace_period"].rstrip("s"))
    assert grace > load_settings({}).stop_deadline_s


def test_make_without_a_target_lists_every_target(repository: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    listed = subprocess.run([make], cwd=repository, capture_output=True, text=True, check=True, timeout=30).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (repository / "Makefile").read_text(), re.M)
    assert phony
    assert {line.split()[1] for line in listed.splitlines()} == set(phony[1].split())


def test_make_says_what_is_missing_where_there_is_no_python(repository: Path, tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    result = subprocess.run(
        [make, "up", f"VENV={tmp_path / 'venv'}", "SHELL=/bin/sh"],
        cwd=repository, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert result.returncode == 2
    assert "Rolecall needs Python 3.11 or newer" in result.stderr
    assert "make PYTHON=/path/to/python3 up" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_ci_runs_the_tests_by_the_makefile(repository: Path) -> None:
    script = repository / ".ci" / "run"
    text = script.read_text()
    assert script.stat().st_mode & 0o111
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text
    assert re.search(r"^make .*\btest\b", text, re.M)
