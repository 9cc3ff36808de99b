"""An example of ``HEALTH_MODULES``: a worker that cannot see a GPU says that it is unhealthy.

SERVICE_ROLE=gpu-worker HEALTH_MODULES=examples.gpu_probe celery -A app worker
"""

from __future__ import annotations

import shutil
import subprocess

from app.health import health_check


@health_check("gpu", timeout_s=5)
def gpu() -> str:
    """Ask the driver's own tool which devices it sees."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise RuntimeError("nvidia-smi is not installed on this host")
    query = [tool, "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=4, check=False)  # noqa: S603 - no input of others
    devices = answer.stdout.split("\n")[:-1]
    if answer.returncode != 0 or not devices:
        raise RuntimeError(answer.stderr.strip() or "the driver sees no device")
    return f"{len(devices)} x {devices[0]}"
