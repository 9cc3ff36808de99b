"""Which ports are free, and who holds those that are not."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

from app.errors import RolecallError

_LISTENS = "0A"


class PortInUse(RolecallError):
    """A port that Rolecall needs is taken; the text names the port, its setting and the process that holds it."""

    code = "port_in_use"


def check_free(host: str, port: int, setting: str) -> None:
    """Return if a server could listen there.

    Raises:
        PortInUse: somebody else does.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a closed connection is no holder
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise PortInUse(f"{host}:{port} cannot be listened on: {error.strerror}; set {setting}") from None
            held = holder(port)
            by = f"by pid {held[0]} ({held[1]})" if held else "by another process"
            raise PortInUse(f"port {port} is in use {by}; stop that, or set {setting} to another port") from None


def holder(port: int) -> tuple[int, str] | None:
    """Return pid and name of the process that listens on ``port``; ``None`` where that cannot be read."""
    inodes = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(table, port)}
    if not inodes:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor) in inodes:
                        return int(process.name), (process / "comm").read_text().strip()
    return None


def _listening(table: str, port: int) -> list[str]:
    with contextlib.suppress(OSError):
        rows = [line.split() for line in Path("/proc/net", table).read_text().splitlines()[1:]]
        return [row[9] for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port]
    return []
