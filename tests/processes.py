"""Real processes behind pytest-celery's containers: where no Docker engine runs, a container is a process group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pytest_celery import CeleryTestContainer

from tests.servers import listens, wait_until


class ProcessContainer(CeleryTestContainer):  # type: ignore[misc]
    """One process group in place of a container: start, logs, signals, restart."""

    def __init__(
        self, name: str, command: list[str], env: dict[str, str], folder: Path, *, port: int | None = None
    ) -> None:
        self._name = name
        self._command = command
        self._env = env
        self._log = folder / f"{name}.log"
        self._port = port
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return subprocess.Popen(
                self._command,
                env={**os.environ, **self._env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def id(self) -> str:
        return str(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def name(self) -> str:
        return self._name

    @property
    def status(self) -> str:
        return "running" if self._process.poll() is None else "exited"

    @property
    def celeryconfig(self) -> dict[str, Any]:
        url = self._env.get("REDIS_URL", "")
        return {"url": url, "host_url": url}

    def logs(self) -> str:
        return self._log.read_text(errors="replace")

    def ready(self) -> bool:
        """Wait until the process listens (if it has a port) or says that it is ready."""
        if self._port is not None:
            port = self._port
            wait_until(lambda: listens(port), seconds=20, what=f"{self._name} listens")
            return True
        wait_until(
            lambda: "ready." in self.logs() or self.status == "exited", seconds=40, what=f"{self._name} is ready"
        )
        assert self.status == "running", self.logs()
        return True

    def kill(self, signal: str | int = "SIGKILL") -> None:
        """Send a signal to the whole group."""
        os.killpg(self._process.pid, _number(signal))

    def signal_main(self, number: int) -> None:
        """Send a signal to the main process alone."""
        os.kill(self._process.pid, number)

    def wait(self, seconds: float) -> int:
        """Wait for the end and return the exit status."""
        return self._process.wait(seconds)

    def restart(self, timeout: int = 10) -> None:
        self.stop(timeout)
        self._process = self._start()

    def start_again(self) -> None:
        """Start the group anew once it has ended."""
        self._process.wait(10)
        self._process = self._start()

    def reload(self, *_: Any) -> None:
        """Nothing is cached."""

    def terminate(self) -> None:
        """Ask the main process to stop, without waiting for it."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self, timeout: float = 10) -> None:
        """End the group, with force if it takes longer than ``timeout`` seconds."""
        if self._process.poll() is None:
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(5)

    def teardown(self) -> None:
        """End the group at once: how a process stops is for a test to see, and nothing for each to wait for."""
        self.stop(0)


def worker_command(*options: str, pool: str = "prefork", concurrency: int = 2) -> list[str]:
    """Return what an operator types to start a worker; its role comes from the environment."""
    return [
        *(sys.executable, "-m", "celery", "-A", "app", "worker", "--loglevel", "INFO"),
        *("--pool", pool, "--concurrency", str(concurrency), "--without-mingle", "--without-gossip"),
        *options,
    ]


def _number(name: str | int) -> int:
    return signal.Signals[name] if isinstance(name, str) else name
