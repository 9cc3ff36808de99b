"""Ends the processes of a supervisor that died without ending them itself.

A tiny process in a session of its own. The supervisor tells it over a pipe which process groups live; the pipe's end
of file, which the kernel brings about however the supervisor dies, makes it stop those that are left, in order. It is
run as a file by a bare interpreter, so it imports nothing of the project.

Lines on standard input: ``+<pid> <rank> <seconds>`` for a group leader that was started (groups of a lower rank stop
first; ``seconds`` is the time that it gets), ``-<pid>`` for a group that is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    living: dict[int, tuple[int, float]] = {}
    for line in sys.stdin:
        words = line[1:].split()
        if line[0] == "+":
            living[int(words[0])] = (int(words[1]), float(words[2]))
        else:
            living.pop(int(words[0]), None)
    until = time.monotonic()
    for rank in sorted({rank for rank, _ in living.values()}):
        until += max(seconds for its, seconds in living.values() if its == rank)
        stop([pid for pid, (its, _) in living.items() if its == rank], until)


def stop(leaders: list[int], until: float) -> None:
    """Ask the leaders to stop, wait, and kill what is left of their groups at the time ``until``."""
    for pid in leaders:
        send(os.kill, pid, signal.SIGTERM)
    while any(send(os.kill, pid, 0) for pid in leaders) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in leaders:
        send(os.killpg, pid, signal.SIGKILL)


def send(how: Callable[[int, int], None], pid: int, number: int) -> bool:
    """Send a signal by ``os.kill`` or ``os.killpg``; return whether there was somebody to get it."""
    try:
        how(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
