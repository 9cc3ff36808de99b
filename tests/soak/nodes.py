"""The handlers of the soak's flows; its workers have them by ``NODE_MODULES``."""

from __future__ import annotations

import os
from typing import Final

from app.nodes import Step, handler

WITNESS_FILE: Final = "SOAK_WITNESS_FILE"
"""The environment variable that names the file to which witnesses write."""


@handler("soak/witness")
def witness(step: Step) -> None:
    """Write one line for each time that this node is executed, whatever servers are away: ``run <tab> node``.

    ``core/count`` counts a step once however often it is executed, so it cannot tell that one ran again.
    """
    run_id = step.key.partition(":")[0]
    line = f"{run_id}\t{step.node}\n".encode()
    # Opened to append and written in one call: lines of several processes do not mix, and a killed one leaves its own.
    file = os.open(os.environ[WITNESS_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)
