"""The life of a run, rule by rule: accepted (`service`), executed (`execution`), kept for good (`housekeeping`)."""

from app.runs.execution import Executor
from app.runs.housekeeping import Housekeeping
from app.runs.service import Runs

__all__ = ["Executor", "Housekeeping", "Runs"]
