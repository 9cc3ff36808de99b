"""The first minute of ``rolecall up``: servers, then the rest, then the examples, with a line of progress each."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from pathlib import Path

from app.client import Client
from app.config import Settings
from app.errors import RolecallError
from app.stack.console import Console
from app.stack.examples import load_examples
from app.stack.health import check_for
from app.stack.procfile import ADMIN, DISPATCHER, MONGO, REDIS, SERVERS, Entry
from app.stack.supervisor import Supervisor

START_S = 60.0
"""How long a process may take until it is ready."""

_POLL_S = 0.1


class NotReady(RolecallError):
    """Processes were not ready in time; the text has the end of their logs."""

    code = "not_ready"


class Opening(threading.Thread):
    """Starts the processes and waits for them, beside the supervisor's loop.

    ``failure`` is why it gave up, if it did.
    """

    def __init__(
        self, supervisor: Supervisor, entries: Collection[Entry], settings: Settings, client: Client, console: Console,
        *, examples: Path, logs: Path, program: str,
    ) -> None:  # fmt: skip
        super().__init__(name="opening", daemon=True)
        self._supervisor = supervisor
        self._entries = entries
        self._settings = settings
        self._client = client
        self._console = console
        self._examples = examples
        self._logs = logs
        self._program = program
        self._stopped = threading.Event()
        self.failure: RolecallError | None = None

    def cancel(self) -> None:
        """Wait for nothing any more; the thread ends soon."""
        self._stopped.set()

    def run(self) -> None:
        try:
            self._open()
        except RolecallError as error:
            self.failure = error

    def _open(self) -> None:
        self._bring_up([entry for entry in self._entries if entry.name in SERVERS])
        self._bring_up([entry for entry in self._entries if entry.name not in SERVERS])
        if self._stopped.is_set():
            return
        names = [entry.name for entry in self._entries]
        if ADMIN in names and DISPATCHER in names:
            self._load_examples()
        if not self._stopped.is_set():
            self._greet(names)

    def _bring_up(self, entries: list[Entry]) -> None:
        """Start processes together and report each one when it is ready."""
        begun = time.monotonic()
        self._supervisor.start(entry.name for entry in entries)
        missing = {entry.name: check_for(entry, self._settings, self._client) for entry in entries}
        while missing and not self._stopped.wait(_POLL_S):
            for status in self._supervisor.status():
                check = missing.get(status.name)
                if check and status.pid is not None and check(status):
                    del missing[status.name]
                    took = time.monotonic() - begun
                    where = self._where(status.name)
                    self._report(status.name, "ready", f"{where:<22} pid {status.pid:<8} {took:.1f} s")
            if missing and time.monotonic() - begun > START_S:
                raise NotReady("\n".join(map(self._explain, missing)))

    def _explain(self, name: str) -> str:
        end = "".join(f"\n  {line}" for line in self._supervisor.tail(name)) or " (it said nothing)"
        return f"{name} was not ready after {START_S:g} s; the end of {self._logs / name}.log:{end}"

    def _where(self, name: str) -> str:
        if name == ADMIN:
            return self._client.url
        ports = {REDIS: self._settings.redis_port, MONGO: self._settings.mongo_port}
        return f"127.0.0.1:{ports[name]}" if name in ports else ""

    def _load_examples(self) -> None:
        begun = time.monotonic()
        try:
            loaded = load_examples(self._client, self._examples)
        except (RolecallError, OSError, ValueError) as error:
            # A fault in an example must not keep somebody from working on it.
            if not self._stopped.is_set():
                self._report("examples", "not loaded", str(error))
            return
        took = time.monotonic() - begun
        kept = f", {loaded.there} left as they are" if loaded.there else ""
        self._report("examples", "ready", f"{loaded.flows} flows, {loaded.made} deployments made{kept}, {took:.1f} s")

    def _report(self, name: str, state: str, text: str) -> None:
        self._console.say(f"  {self._console.tag(name)}  {state:<6} {text}")

    def _greet(self, names: list[str]) -> None:
        say, url = self._console.say, self._client.url
        if ADMIN in names:
            say(f"\nRolecall is up: {url}\n")
            say("A first run, and what happens in it:")
            say("  curl -N -H 'Accept: text/event-stream' -H 'Content-Type: application/json' \\")
            say(f"""    -d '{{"input": {{"seconds": 5}}}}' {url}/api/v1/deployments/slow-count/runs\n""")
        last = [entry.name for entry in self._entries if entry.rank == 0] or names
        program = self._program
        say(
            f"To keep a process down: {program} stop {last[-1]}   again: {program} start {last[-1]}   all: {program} ps"
        )
        say(f"Logs: {self._logs}/<name>.log   Ctrl-C stops everything.\n")
        self._console.quiet = False
