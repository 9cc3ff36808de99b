"""The layers hold, and the contracts that say so can fail."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

LINT = str(Path(sys.executable).with_name("lint-imports"))


def test_every_import_contract_is_kept(repository: Path) -> None:
    result = subprocess.run(
        [LINT, "--no-cache"], cwd=repository, capture_output=True, text=True, check=False, timeout=100
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_module_of_the_kernel_has_a_layer(repository: Path) -> None:
    """So that a new module is placed on purpose; the contract itself refuses one that has none."""
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [kernel] = [contract for contract in contracts if contract.get("containers") == ["app"]]
    assert kernel["exhaustive"] is True
    placed = {name.strip() for layer in kernel["layers"] for part in layer.split("|") for name in part.split(":")}
    modules = {
        path.stem
        for path in (repository / "app").iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and path.stem != "__init__"
    }
    assert placed == modules


def test_an_import_against_the_layers_is_found(repository: Path, tmp_path: Path) -> None:
    """A copy of the sources with one bad import in each direction that matters."""
    import shutil

    for package in ("app", "workers", "admin"):
        shutil.copytree(repository / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / "pyproject.toml", tmp_path)
    for path, bad in {
        "app/resolver.py": "import redis",
        "app/roles.py": "from app import config, runs",
        "app/runs/gate.py": "import flask",
        "app/store/memory.py": "from app.live import memory",
        "workers/tasks.py": "import admin.app",
        "admin/app.py": "import celery",
    }.items():
        with (tmp_path / path).open("a") as file:
            file.write(f"\n{bad}\n")
    result = subprocess.run(
        [LINT, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert result.returncode == 1
    for chain in (
        "app.resolver -> redis",
        "app.roles -> app.runs",
        "app.runs.gate -> flask",
        "app.store.memory -> app.live.memory",
        "workers.tasks -> admin.app",
        "admin.app -> celery",
    ):
        assert chain in result.stdout
