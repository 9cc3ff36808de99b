"""The ``Procfile``: which processes a whole Rolecall consists of, and in which order they stop."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from app.errors import SettingError

_LINE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_-]*):\s*(?P<command>\S.*)")

REDIS, MONGO, ADMIN, DISPATCHER = "redis", "mongo", "admin", "dispatcher"
SERVERS = (REDIS, MONGO)

_RANKS = {DISPATCHER: 1, ADMIN: 1, REDIS: 2, MONGO: 2}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a Procfile: a process's name and its command in the syntax of ``sh``."""

    name: str
    command: str

    @property
    def rank(self) -> int:
        """When it stops: role workers (0), then dispatchers and the admin app (1), then the servers (2)."""
        return _RANKS.get(self.name, 0)

    @property
    def answers_for_a_role(self) -> bool:
        """Whether the process announces itself in the register, which tells that it is ready."""
        return "SERVICE_ROLE=" in self.command


def read_procfile(path: Path) -> list[Entry]:
    """Read a Procfile.

    Raises:
        SettingError: there is none, a line is no ``name: command``, or a name occurs twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        raise SettingError(
            f"there is no {path.name} in {path.parent.resolve()}; run this in the folder of the checkout"
        ) from None
    entries: dict[str, Entry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise SettingError(f"{path.name}, line {number}: {line[:80]!r} is not `name: command`")
        if match["name"] in entries:
            raise SettingError(f"{path.name}, line {number}: the name {match['name']!r} occurs twice")
        entries[match["name"]] = Entry(match["name"], match["command"])
    if not entries:
        raise SettingError(f"{path.name} names no process")
    return list(entries.values())


def choose(entries: list[Entry], only: list[str]) -> list[Entry]:
    """Return the entries named in ``only`` (none named: all), in the Procfile's order.

    Raises:
        SettingError: a name that the Procfile does not have.
    """
    known = [entry.name for entry in entries]
    for name in only:
        if name not in known:
            raise SettingError(f"the Procfile has no process {name!r}; it has {', '.join(known)}")
    return [entry for entry in entries if not only or entry.name in only]
