"""``rolecall up`` in a process of its own, for tests that look at it from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.servers import free_port, wait_until

ROLECALL = [str(Path(sys.executable).with_name("rolecall"))]


class Up:
    """A ``rolecall up`` in a process of its own."""

    def __init__(self, folder: Path, data: Path, *words: str, **environ: str) -> None:
        data.mkdir(exist_ok=True)
        self.folder = folder
        self.environ: Mapping[str, str] = {
            **os.environ,
            **dict.fromkeys(("REDIS_URL", "BROKER_URL", "MONGO_URL", "STOP_DEADLINE_S", "SERVICE_ROLE"), ""),
            **{name: str(free_port()) for name in ("ADMIN_PORT", "REDIS_PORT", "MONGO_PORT")},
            "DATA_DIR": str(data),
            **environ,
        }
        self.output = data / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*ROLECALL, "up", *words], cwd=folder, env=self.environ, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def said(self) -> str:
        return self.output.read_text()

    def until(self, text: str, *, seconds: float = 30) -> None:
        wait_until(
            lambda: text in self.said or self.process.poll() is not None, seconds=seconds, what=f"{text!r} is said"
        )
        assert text in self.said

    def rolecall(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*ROLECALL, *words],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        descendants = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(how)
        code = self.process.wait(15)
        assert [one for one in descendants if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
        return code
