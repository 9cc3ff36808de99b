"""What processes say: each one's log file, and the terminal with every line under its process's name."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path
from typing import TextIO

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
LOG_MAX_BYTES = 10_000_000


class Console:
    """The terminal of ``rolecall up``. It never fails: a terminal that went away must not stop the processes."""

    def __init__(self, stream: TextIO, names: list[str], *, colour: bool | None = None) -> None:
        if colour is None:
            colour = stream.isatty() and "NO_COLOR" not in os.environ
        self._stream = stream
        self._width = max(map(len, names), default=0)
        self._colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(names)} if colour else {}
        self.quiet = False
        """While set, lines of processes go to their log files alone."""

    def say(self, text: str = "") -> None:
        """Print a line of Rolecall's own."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{text}\n")  # in one piece: two threads speak
            self._stream.flush()

    def line(self, name: str, text: str) -> None:
        """Print what a process said."""
        if not self.quiet:
            self.say(f"{self.tag(name)} | {text}")

    def tag(self, name: str) -> str:
        """Return the name, padded so that names stand in one column, in its colour on a terminal."""
        padded = name.ljust(self._width)
        return f"\x1b[{self._colours[name]}m{padded}\x1b[0m" if name in self._colours else padded


class Log:
    """One process's log file; a full one becomes ``<name>.log.1``, and what was that is dropped."""

    def __init__(self, path: Path, *, max_bytes: int = LOG_MAX_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._max_bytes = max_bytes
        self._file = path.open("ab")
        self._rest = b""
        self.tail: deque[str] = deque(maxlen=20)
        """The last lines, for whoever has to explain why the process died."""

    def feed(self, data: bytes) -> list[str]:
        """Write what a process said; return the lines that are now complete."""
        self._write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > 65_536:
            lines.append(self._rest)
            self._rest = b""
        return self._decode(lines)

    def flush(self) -> list[str]:
        """Return what was left without a line's end."""
        lines, self._rest = [self._rest] if self._rest else [], b""
        return self._decode(lines)

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk is shown by the databases, which it really hurts
            if self._file.tell() + len(data) > self._max_bytes and self._file.tell():
                self._file.close()
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
                self._file = self.path.open("ab")
            self._file.write(data)
            self._file.flush()

    def _decode(self, lines: list[bytes]) -> list[str]:
        texts = [line.decode("utf-8", "replace").rstrip("\r") for line in lines]
        self.tail.extend(texts)
        return texts
