"""The soak's world: servers behind proxies and every kind of process, kept up as a supervisor keeps them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, RLock, Thread
from types import TracebackType
from typing import Literal

import psutil

from app import wiring
from app.client import Client
from app.config import Settings, load_settings
from app.errors import RolecallError
from app.stack import reaper
from app.stack.servers import mongo_command, valkey_command
from app.wiring import Services
from tests.processes import ProcessContainer, worker_command
from tests.servers import free_port, listens, wait_until
from tests.soak.flows import ROLES
from tests.soak.nodes import WITNESS_FILE
from tests.soak.proxy import Proxy

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
TTL_S = 4.0
READY_S = 60.0
WATCH_S = 0.3

Kind = Literal["server", "admin", "dispatcher", "worker"]


@dataclass
class Member:
    """One process group of the world. ``wanted``: somebody is to start it again when it is seen to be gone."""

    name: str
    kind: Kind
    role: str
    container: ProcessContainer
    wanted: bool = True
    frozen: bool = False
    exits: list[str] = field(default_factory=list)

    @property
    def lives(self) -> bool:
        return self.container.status == "running"

    @property
    def forks(self) -> bool:
        """Whether it has a pool of processes."""
        return self.kind == "worker" and self.role != ROLES[-1]

    def children(self) -> list[int]:
        """Return the process ids of its pool."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self.container.pid).children()]
        return []


class World:
    """Loopback and free ports only; everything lies in ``folder``. Use it as a context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = Path(__file__).resolve().parents[2]
        self.redis_port, self.mongo_port, self.admin_port = free_port(), free_port(), free_port()
        self.witness_file = folder / "witness"
        self.members: dict[str, Member] = {}
        self.proxies: dict[str, Proxy] = {}
        self.settings: Settings
        self.services: Services
        self._lock = RLock()
        self._stack = contextlib.ExitStack()
        self._over = Event()

    def __enter__(self) -> World:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    # --- start ---------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._reaper = self._stack.enter_context(_reaping())
        self._stack.callback(self._end_all)
        self._server("valkey", self.redis_port, valkey_command)
        self._server("mongo", self.mongo_port, mongo_command)
        for name, port in (("redis", self.redis_port), ("mongo", self.mongo_port)):
            self.proxies[name] = Proxy(port)
            self._stack.callback(self.proxies[name].close)
        direct = self._environment(self.redis_port, self.mongo_port)
        # The proof's own look at the servers: not by the proxies.
        self.settings = load_settings(direct, service_role="soak")
        self.services = wiring.build(self.settings)
        self._stack.callback(self.services.close)
        self.services.store.prepare()
        environment = self._environment(self.proxies["redis"].port, self.proxies["mongo"].port)
        config = str(self.repository / "admin" / "gunicorn.py")
        gunicorn = [sys.executable, "-m", "gunicorn", "-c", config, "admin.wsgi:app"]
        self._start("admin", "admin", "admin-api", gunicorn, environment, port=self.admin_port)
        for number in (1, 2):
            command = worker_command(pool="threads", concurrency=4)
            self._start(f"dispatcher{number}", "dispatcher", "dispatcher", command, environment)
        for role in ROLES:
            pool = "threads" if role == ROLES[-1] else "prefork"
            for number in (1, 2):
                self._start(f"{role}{number}", "worker", role, worker_command(pool=pool), environment)
        self.until_well()
        watcher = Thread(target=self._watch, name="watcher", daemon=True)
        watcher.start()
        self._stack.callback(watcher.join, 5)
        self._stack.callback(self._over.set)

    def _environment(self, redis_port: int, mongo_port: int) -> dict[str, str]:
        """The settings of every process; times are scaled down to about a tenth."""
        return {
            "REDIS_URL": f"redis://127.0.0.1:{redis_port}/0",
            "BROKER_URL": f"redis://127.0.0.1:{redis_port}/0",
            # Directly, or the driver goes to the address that the server gives as its own, past the proxy.
            "MONGO_URL": f"mongodb://127.0.0.1:{mongo_port}/soak?directConnection=true",
            "ADMIN_PORT": str(self.admin_port),
            "HEARTBEAT_INTERVAL_S": str(INTERVAL_S),
            "HEARTBEAT_TTL_S": str(TTL_S),
            "LEASE_TTL_S": str(TTL_S),
            "HOUSEKEEPING_S": "1",
            "SOCKET_TIMEOUT_S": "1",
            "STOP_DEADLINE_S": "3",
            "RUN_TIMEOUT_S": "120",
            "NODE_MODULES": "tests.soak.nodes",
            WITNESS_FILE: str(self.witness_file),
            "DATA_DIR": str(self.folder),
            "TMPDIR": str(self.folder),
            "PYTHONPATH": str(self.repository),
        }

    def _server(self, name: str, port: int, command: Callable[[int, Path], list[str]]) -> None:
        data = self.folder / name
        data.mkdir()
        self._start(name, "server", "", command(port, data), {}, port=port)
        wait_until(lambda: listens(port), seconds=READY_S, what=f"{name} listens")

    def _start(
        self, name: str, kind: Kind, role: str, command: list[str], environment: dict[str, str], *, port: int = 0
    ) -> None:
        env = environment | ({"SERVICE_ROLE": role} if role else {})
        container = ProcessContainer(name, command, env, self.folder, port=port or None)
        self.members[name] = Member(name, kind, role, container)
        self._tell_reaper("+", container.pid)

    # --- what faults do ------------------------------------------------------------------------------------------

    def of_kind(self, *kinds: Kind) -> list[Member]:
        return [member for member in self.members.values() if member.kind in kinds]

    def kill(self, name: str) -> None:
        """SIGKILL the whole group and keep it down until :meth:`start`."""
        with self._lock:
            member = self.members[name]
            member.wanted = member.frozen = False
            self._kill(member)

    def stop(self, name: str) -> None:
        """SIGTERM the main process and keep it down until :meth:`start`, which kills what is left."""
        with self._lock:
            self.members[name].wanted = False
            self.members[name].container.terminate()

    def start(self, name: str) -> None:
        """Start a member that is down, or is about to be."""
        with self._lock:
            member = self.members[name]
            self._kill(member)
            member.container.start_again()
            self._tell_reaper("+", member.container.pid)
            member.wanted = True

    def freeze(self, name: str, *, children: bool = True) -> None:
        member = self.members[name]
        with self._lock, contextlib.suppress(ProcessLookupError):
            member.frozen = True
            if children:
                member.container.kill("SIGSTOP")
            else:
                member.container.signal_main(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        member = self.members[name]
        with self._lock, contextlib.suppress(ProcessLookupError):
            member.frozen = False
            member.container.kill("SIGCONT")

    def heal(self) -> None:
        """Undo every fault there may be."""
        for proxy in self.proxies.values():
            proxy.resume()
        for member in self.members.values():
            self.thaw(member.name)
            if not (member.wanted and member.lives):
                self.start(member.name)

    # --- what is asked of it -------------------------------------------------------------------------------------

    def client(self) -> Client:
        return Client(self.url)

    def until_well(self, seconds: float = READY_S) -> None:
        """Wait until the register has every process as healthy and nobody else, and the admin app says it is ready."""
        with self.client() as client:
            wait_until(lambda: self._well(client), seconds=seconds, what="every process is well", step=0.2)

    def _well(self, client: Client) -> bool:
        with contextlib.suppress(RolecallError):
            return bool(client.get("/readyz")["ready"]) and self.registered() == self.living()
        return False

    def registered(self) -> set[int]:
        """Return the process ids in the register that call themselves healthy."""
        found = self.services.register.instances()
        return {instance.heartbeat.pid for instance in found if instance.heartbeat.healthy}

    def living(self) -> set[int]:
        """Return the process ids that the register should have: main processes, of the web server its one worker."""
        pids: set[int] = set()
        for member in self.of_kind("admin", "dispatcher", "worker"):
            pids |= {member.container.pid} if member.kind != "admin" else set(member.children())
        return pids

    def exits(self) -> list[str]:
        """Return what ended by itself."""
        return [line for member in self.members.values() for line in member.exits]

    # --- inside --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Start again whatever ended by itself, and remember it."""
        while not self._over.wait(WATCH_S):
            for member in self.members.values():
                with self._lock:
                    if member.wanted and not member.lives:
                        self._note_exit(member)
                        self.start(member.name)

    def _note_exit(self, member: Member) -> None:
        status = member.container.wait(1)
        member.exits.append(f"{time.strftime('%H:%M:%S')} {member.name} ended by itself with status {status}")
        logger.warning("%s; its last lines:\n%s", member.exits[-1], member.container.logs()[-1500:])

    def _kill(self, member: Member) -> None:
        pid = member.container.pid
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        member.container.wait(10)
        self._tell_reaper("-", pid)

    def _end_all(self) -> None:
        # Frozen or not, nothing outlives the world, and nothing it held is worth a clean stop.
        for member in self.members.values():
            member.wanted = False
            with contextlib.suppress(Exception):
                self._kill(member)

    def _tell_reaper(self, sign: str, pid: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            assert self._reaper.stdin is not None
            self._reaper.stdin.write(f"{sign}{pid} 0 0.2\n" if sign == "+" else f"-{pid}\n")
            self._reaper.stdin.flush()


@contextlib.contextmanager
def _reaping() -> Iterator[subprocess.Popen[str]]:
    """Run the supervisor's reaper: it kills what is left, should this very process be killed."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", reaper.__file__], stdin=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        yield process
