"""``docs/nodes.md`` and ``examples/node-package`` are what an author of nodes would copy: both install and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.flowdsl import compile_flow, flow_names, read
from app.health import Health, load_checks
from app.models.base import parse
from app.models.deployment import DeploymentIn
from app.nodes.registry import HandlerRegistry, load_handlers
from tests.flows import run

FILE = re.compile(r"`my-nodes/([\w.]+)`[^`]*?```\w+\n(.*?)```", re.S)
PACKAGE = Path("examples") / "node-package"
MODULES = ("mynodes", "parcels")


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "nodes.md").read_text("utf-8")


@pytest.fixture(scope="module")
def written(repository: Path, page: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the page says to write into ``my-nodes``, and a copy of the example."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "my-nodes").mkdir()
    for name, text in FILE.findall(page):
        (folder / "my-nodes" / name).write_text(text, "utf-8")
    shutil.copytree(repository / PACKAGE, folder / "node-package", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    return folder


@pytest.fixture(scope="module")
def installed(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both packages, built and installed as pip does it, away from the environment of the tests."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    packages = [str(written / "my-nodes"), str(written / "node-package")]
    result = subprocess.run([*pip, *alone, *packages], capture_output=True, text=True, check=False, timeout=100)
    assert result.returncode == 0, result.stderr
    return target


@pytest.fixture
def handlers(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandlerRegistry]:
    """What a worker has beside which both packages are installed."""
    monkeypatch.syspath_prepend(installed)
    yield load_handlers()
    for name in [name for name in sys.modules if name.partition(".")[0] in MODULES]:
        del sys.modules[name]


def test_the_page_has_the_files_that_it_promises(written: Path) -> None:
    for name in ("pyproject.toml", "mynodes.py", "test_mynodes.py", "hello.flowdsl.yaml"):
        assert (written / "my-nodes" / name).read_text("utf-8").strip(), name


def test_workers_have_the_handlers_of_installed_packages(handlers: HandlerRegistry) -> None:
    assert handlers.refs >= {"mycompany/greet", "parcels/quote", "parcels/book"}


@pytest.mark.parametrize(
    ("flow", "given", "output"),
    [
        ("my-nodes/hello.flowdsl.yaml", {"name": "Ada"}, {"name": "Ada", "text": "Welcome, Ada!"}),
        (
            "node-package/shipping.flowdsl.yaml",
            {"zone": "home", "kg": 2.5},
            {"zone": "home", "kg": 2.5, "price": 7.15,
             "booking": {"carrier": "courier", "days": 3, "reference": "run:quote/0/0"}},
        ),
    ],
)  # fmt: skip
def test_their_flows_run(handlers: HandlerRegistry, written: Path, flow: str, given: object, output: object) -> None:
    document = read((written / flow).read_bytes())
    [name] = flow_names(document)
    plan = compile_flow(document, name, handlers=handlers)
    assert plan.warnings(handlers.refs) == []
    assert run(plan, given, handlers).outcome.output == output


def test_their_deployments_are_valid(page: str, written: Path) -> None:
    [shown] = re.findall(r'^\{"id": .*\}$', page, re.M)
    example = (written / "node-package" / "deployment.json").read_text("utf-8")
    assert parse(DeploymentIn, json.loads(shown)).variants[0].target_roles == ("greeter",)
    assert parse(DeploymentIn, json.loads(example)).variants[0].target_roles == ("parcels",)


@pytest.mark.usefixtures("handlers")
def test_the_health_check_of_the_example_answers() -> None:
    health = Health(load_checks(["parcels.health"]), monotonic=lambda: 0.0, patience_s=10)
    answer = health.examine()["parcels-tariff"]
    assert (answer.healthy, answer.detail) == (True, "2 zones")


@pytest.mark.parametrize("package", ["my-nodes", "node-package"])
def test_their_own_tests_pass(repository: Path, written: Path, installed: Path, package: str) -> None:
    places = os.pathsep.join([str(installed), str(repository)])
    alone = {"PYTHONPATH": places, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(written / package)],
        cwd=written / package, env=os.environ | alone,
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"\b[1-9]\d* passed", result.stdout)


def test_what_make_up_loads_does_not_need_the_example(repository: Path) -> None:
    """``rolecall up`` imports the documents of ``examples/`` itself; those below it need packages of their own."""
    refs = load_handlers(entry_points=False).refs
    for path in (repository / "examples").glob("*.flowdsl.*"):
        document = read(path.read_bytes())
        for name in flow_names(document):
            assert compile_flow(document, name).warnings(refs) == []
