"""When a process of the stack is ready, asked from outside."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from app.client import Client
from app.config import Settings
from app.errors import RolecallError
from app.models.heartbeat import WorkerState
from app.stack.procfile import ADMIN, MONGO, REDIS, Entry
from app.stack.supervisor import State, Status

_SECONDS = 1.0


def check_for(entry: Entry, settings: Settings, client: Client) -> Callable[[Status], bool]:
    """Return the check that tells whether the process of ``entry`` is ready."""
    if entry.name == REDIS:
        return lambda _: answers_ping(settings.redis_port)
    if entry.name == MONGO:
        return lambda _: listens(settings.mongo_port)
    if entry.name == ADMIN:
        return lambda _: answers(client, "/healthz")
    if entry.answers_for_a_role:
        return lambda status: announced(client, status.pid)
    return lambda status: status.state is State.RUNNING


def answers_ping(port: int) -> bool:
    """Return whether a Redis on loopback has loaded its data and answers."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_SECONDS) as wire:
        wire.sendall(b"PING\r\n")
        return wire.recv(16).startswith(b"+PONG")
    return False


def listens(port: int) -> bool:
    """Return whether somebody on loopback takes connections. (Real queries are the admin app's ``/readyz``.)"""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_SECONDS):
        return True
    return False


def answers(client: Client, path: str) -> bool:
    with contextlib.suppress(RolecallError):
        client.get(path)
        return True
    return False


def announced(client: Client, pid: int | None) -> bool:
    """Return whether the register knows the process with this pid, on this host, as healthy."""
    with contextlib.suppress(RolecallError):
        here = socket.gethostname()
        return any(
            worker["pid"] == pid and worker["hostname"] == here and worker["state"] == WorkerState.HEALTHY
            for worker in client.get("/admin/workers")["workers"]
        )
    return False
