"""Real Celery workers by role on a real broker, through pytest-celery's fixtures."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import pytest
from pytest_celery import (
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestBroker,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
)

from app import wiring
from app.celery import RolecallCelery
from app.config import Settings, load_settings
from app.stack.servers import valkey_command
from app.wiring import Services
from tests.processes import ProcessContainer, worker_command
from tests.servers import free_port, wait_until

INTERVAL_S = 0.4
TTL_S = 2.4
STOP_S = 1.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes of a module keep data and logs."""
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def environment(mongo_server: str, folder: Path) -> dict[str, str]:
    """The settings of every process of a module; times are scaled down."""
    return {
        "REDIS_URL": f"redis://127.0.0.1:{free_port()}/0",
        "MONGO_URL": f"{mongo_server}/t{uuid.uuid4().hex[:12]}",
        "HEARTBEAT_INTERVAL_S": str(INTERVAL_S),
        "HEARTBEAT_TTL_S": str(TTL_S),
        "LEASE_TTL_S": str(TTL_S),
        "HOUSEKEEPING_S": "0.5",
        "STOP_DEADLINE_S": str(STOP_S),
        "DATA_DIR": str(folder),
    }


@pytest.fixture(scope="module")
def settings(environment: dict[str, str]) -> Settings:
    return load_settings(environment)


@pytest.fixture(scope="module")
def celery_broker(environment: dict[str, str], folder: Path) -> Iterator[CeleryTestBroker]:
    port = urlsplit(environment["REDIS_URL"]).port
    assert port is not None
    data = folder / "valkey"
    data.mkdir()
    container = ProcessContainer("valkey", valkey_command(port, data), environment, folder, port=port)
    broker = CeleryTestBroker(container)
    broker.ready()
    yield broker
    broker.teardown()


@pytest.fixture(scope="module")
def celery_broker_cluster(celery_broker: CeleryTestBroker) -> CeleryBrokerCluster:
    return CeleryBrokerCluster(celery_broker)


@pytest.fixture(scope="module")
def celery_backend_cluster() -> CeleryBackendCluster | None:
    """Results live in the broker's server."""
    return None


class StartWorker(Protocol):
    """Starts a worker of a role as an operator does; the process goes on to start while the caller goes on."""

    def __call__(self, role: str, *options: str, pool: str = "prefork", concurrency: int = 2) -> CeleryTestWorker: ...


@contextmanager
def starting(environment: dict[str, str], folder: Path) -> Iterator[StartWorker]:
    """Give a way to start workers, and end them all with the block."""
    started: list[CeleryTestWorker] = []

    def start(role: str, *options: str, pool: str = "prefork", concurrency: int = 2) -> CeleryTestWorker:
        command = worker_command(*options, pool=pool, concurrency=concurrency)
        name = f"worker{len(list(folder.glob('worker*.log')))}"
        container = ProcessContainer(name, command, {**environment, "SERVICE_ROLE": role}, folder)
        started.append(CeleryTestWorker(container, app=None))
        return started[-1]

    try:
        yield start
    finally:
        for worker in started:
            worker.teardown()


@pytest.fixture
def start_worker(celery_broker: CeleryTestBroker, environment: dict[str, str], folder: Path) -> Iterator[StartWorker]:
    """Start workers that end with the test."""
    with starting(environment, folder) as start:
        yield start


@pytest.fixture(scope="module")
def celery_worker_cluster(
    celery_broker: CeleryTestBroker, environment: dict[str, str], folder: Path, request: pytest.FixtureRequest
) -> Iterator[CeleryWorkerCluster]:
    """The workers that all tests of a module share, by its list ``ROLES``."""
    with starting(environment, folder) as start:
        workers = [start(role) for role in request.module.ROLES]
        for worker in workers:
            worker.ready()
        yield CeleryWorkerCluster(*workers)


@pytest.fixture(scope="module")
def celery_setup_app(settings: Settings, celery_broker: CeleryTestBroker) -> RolecallCelery:
    return RolecallCelery(settings)


@pytest.fixture(scope="module")
def celery_setup(
    celery_worker_cluster: CeleryWorkerCluster,
    celery_broker_cluster: CeleryBrokerCluster,
    celery_backend_cluster: CeleryBackendCluster | None,
    celery_setup_app: RolecallCelery,
) -> Iterator[CeleryTestSetup]:
    setup = CeleryTestSetup(celery_worker_cluster, celery_broker_cluster, celery_backend_cluster, app=celery_setup_app)
    assert setup.ready()
    yield setup
    setup.teardown()


@pytest.fixture(scope="module")
def services(settings: Settings, celery_setup: CeleryTestSetup) -> Iterator[Services]:
    """A caller's services beside the running workers, once all of those are in the register."""
    services = wiring.build(settings, celery=celery_setup.app)
    services.store.prepare()
    wait_for_workers(services, len(celery_setup.worker_cluster))
    yield services
    services.close()


def wait_for_workers(services: Services, count: int, *, role: str | None = None) -> None:
    """Wait until ``count`` healthy workers (of a role) are in the register."""

    def there() -> bool:
        beats = [instance.heartbeat for instance in services.register.instances()]
        return sum(1 for beat in beats if beat.healthy and role in (None, beat.role)) == count

    wait_until(there, seconds=20, what=f"{count} healthy workers of {role or 'any role'} are in the register")
