"""Processes that a benchmark starts and ends, on free loopback ports."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

START_S = 40.0
STOP_S = 10.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5):
        return True
    return False


def wait_until(ready: Callable[[], bool], what: str, *, seconds: float = START_S, step: float = 0.02) -> None:
    """Poll until ``ready`` is true.

    Raises:
        TimeoutError: it was not in ``seconds``; the text says ``what`` was waited for.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not so after {seconds:g} s")
        time.sleep(step)


@contextlib.contextmanager
def running(
    name: str, command: Sequence[str], ready: Callable[[], bool], *, folder: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process and all that it starts until the block ends; its output goes to ``folder/<name>.log``."""
    log = folder / f"{name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: process.poll() is not None or ready(), f"{name} is ready")
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode}:\n{log.read_text(errors='replace')[-2000:]}")
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        # Also what the process left behind: a pool's children, a server's threads that hang.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
