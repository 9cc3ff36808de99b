"""The life of a run, rule by rule.

Accepted (`service`), executed (`execution`, `attempt`), kept going (`rescue`, `recovery`), kept for good
(`housekeeping`), read (`log`).
"""

from app.runs.execution import Executor
from app.runs.housekeeping import Housekeeping
from app.runs.recovery import Recovery
from app.runs.rescue import Rescue
from app.runs.service import Runs

__all__ = ["Executor", "Housekeeping", "Recovery", "Rescue", "Runs"]
