"""The Celery node name of a worker: ``<role>@<host>``, or ``<role>-2``, ``<role>-3`` ... when several share a host.

Held by a lock on a host-local file, so that a restarted worker gets its name back and two never share one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path
from typing import IO

MAX_WORKERS_A_HOST = 1000


class NodeName:
    """A name that is held until :meth:`release` or the end of the process."""

    def __init__(self, name: str, file: IO[str] | None) -> None:
        self.name = name
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def claim(role: str, hostname: str, *, installation: str) -> NodeName:
    """Claim the first free name of a role on this host.

    Args:
        installation: tells installations on one host apart (each numbers its own workers).

    Where no file can be written, the process id makes the name unique; it is then not the same after a restart.
    """
    digest = hashlib.sha256(installation.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"rolecall-{os.getuid()}-{digest}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for number in range(1, MAX_WORKERS_A_HOST + 1):
            label = role if number == 1 else f"{role}-{number}"
            file = (folder / f"{label}.lock").open("a")
            try:
                # A POSIX lock, because children of the pool do not inherit it: a killed parent frees its name.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                continue
            return NodeName(f"{label}@{hostname}", file)
    except OSError:
        pass
    return NodeName(f"{role}-{os.getpid()}@{hostname}", None)
