"""Real servers for the tests: one Valkey and one MongoDB-protocol server a session, each test in its own corner."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(ready: Callable[[], bool], *, seconds: float, what: str, step: float = 0.02) -> None:
    """Poll until ``ready`` is true; say ``what`` was waited for if the time is over."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not so after {seconds:g} s")
        time.sleep(step)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5):
        return True
    return False


@contextlib.contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends; its output goes to ``log``."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: listens(port) or process.poll() is not None, seconds=20, what=f"{command[0]} listens")
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended with {process.returncode}:\n{log.read_text()[-2000:]}")
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
