"""What a process says of itself every few seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

HEARTBEAT_SCHEMA = 1


class WorkerState(StrEnum):
    """How an instance is shown: ``gone`` is one that said goodbye or was not heard of for the TTL."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    GONE = "gone"


class _Snake(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class Check(_Snake):
    """One health check's last answer. ``ms`` is how long it took; ``scope`` says whose fault a failure is."""

    healthy: bool
    detail: str = ""
    ms: Annotated[float, Field(strict=False)] = 0.0
    scope: Literal["local", "shared"] = "local"


class Heartbeat(_Snake):
    """The heartbeat, snake_case on the wire; the first eight fields are the seed's. Times are RFC 3339."""

    instance_id: str
    hostname: str
    role: str
    version: str
    started_at: str
    healthy: bool
    checks: dict[str, Check] = Field(default_factory=dict)
    pid: int
    node: str = ""
    executes: bool = False
    pool: str = ""
    concurrency: int = 0
    """How many runs the process can execute at a time."""
    active: int = 0
    reserved: int = 0
    last_consumed_at: str | None = None
    draining: bool = False
    nodes: tuple[str, ...] = Field(default=(), strict=False)
    """Refs of the handlers that this process has."""
    schema_: int = Field(default=HEARTBEAT_SCHEMA, alias="schema")

    def to_wire(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    @property
    def state(self) -> WorkerState:
        if not self.healthy:
            return WorkerState.UNHEALTHY
        return WorkerState.DRAINING if self.draining else WorkerState.HEALTHY


@dataclass(frozen=True, slots=True)
class RegisteredInstance:
    """A heartbeat as the register holds it. ``last_seen_ms``: the server's time of its arrival."""

    heartbeat: Heartbeat
    last_seen_ms: int
