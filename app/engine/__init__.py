"""The engine: executes compiled flows. Synchronous and deterministic; everything it needs is passed in."""

from app.engine.execution import MAX_STEPS, execute
from app.engine.host import Cancelled, Fenced, HandBack, Host, Interrupted, TimedOut

__all__ = ["MAX_STEPS", "Cancelled", "Fenced", "HandBack", "Host", "Interrupted", "TimedOut", "execute"]
