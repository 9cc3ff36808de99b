"""Settings: one table, read once from the environment. ``docs/settings.md`` is checked against it by a test."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from app.errors import SettingError
from app.models.base import plain_fault
from app.models.names import DISPATCHER, check_role, check_service_role

REDIS_SCHEMES = ("redis", "rediss", "sentinel", "rediss+sentinel", "unix")
MONGO_SCHEMES = ("mongodb", "mongodb+srv")


def _server(*schemes: str) -> Any:
    def check(url: str) -> str:
        try:
            scheme = urlsplit(url).scheme
        except ValueError:
            # Its own words may quote the password.
            raise ValueError("is no URL") from None
        if scheme in ("redis+cluster", "rediss+cluster", "rediscluster"):
            raise ValueError(
                "is a Redis Cluster; its scripts would touch keys of several slots. Use one server or Sentinel"
            )
        if scheme not in schemes:
            raise ValueError(f"must begin with one of {', '.join(f'{name}://' for name in schemes)}")
        return url

    return AfterValidator(check)


def _module_list(text: str) -> str:
    for name in filter(None, (part.strip() for part in text.split(","))):
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{name!r} is not the name of a Python module")
    return text


def _prefix(text: str) -> str:
    if not text or any(char.isspace() or char in "*?[]{}" or not char.isascii() for char in text):
        raise ValueError("must be ASCII without spaces, wildcards or braces")
    return text


Seconds = Annotated[float, Field(gt=0, le=86_400 * 30, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Count = Annotated[int, Field(ge=1, le=2**31)]
Modules = Annotated[str, AfterValidator(_module_list)]


class Settings(BaseSettings):
    """Everything that an operator can set. Names are the environment's, in upper case."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, case_sensitive=False, env_ignore_empty=True)

    service_role: Annotated[str, AfterValidator(check_service_role)] = Field(
        "api", description="The role that this process answers for.", examples=["gpu-worker"]
    )
    redis_url: Annotated[str, _server(*REDIS_SCHEMES)] = Field(
        "", description="Redis or Valkey with register and live state. Default: the embedded one at `REDIS_PORT`.",
        examples=["redis://127.0.0.1:6379/0"], repr=False,
    )  # fmt: skip
    broker_url: Annotated[str, _server(*REDIS_SCHEMES, "amqp", "amqps")] = Field(
        "", description="Celery's broker: Redis, Valkey or RabbitMQ. Default: `REDIS_URL`.",
        examples=["amqp://guest:guest@127.0.0.1:5672//"], repr=False,
    )  # fmt: skip
    mongo_url: Annotated[str, _server(*MONGO_SCHEMES)] = Field(
        "", description="MongoDB with flows, deployments and the ledger; its path names the database (default "
        "`rolecall`). Default: the embedded one at `MONGO_PORT`.",
        examples=["mongodb://127.0.0.1:27017/rolecall"], repr=False,
    )  # fmt: skip
    heartbeat_interval_s: Seconds = Field(10.0, description="Time between two heartbeats of a process.")
    heartbeat_ttl_s: Seconds = Field(
        30.0, description="An instance not heard of for this long is gone. At least 3 x `HEARTBEAT_INTERVAL_S`."
    )
    lease_ttl_s: Seconds = Field(
        30.0, description="A run whose worker did not renew for this long is lost. At least 3 x `HEARTBEAT_INTERVAL_S`."
    )
    housekeeping_s: Seconds = Field(2.0, description="Time between two rounds of a dispatcher's housekeeping.")
    default_role: Annotated[str, AfterValidator(lambda role: role and check_role(role))] = Field(
        "", description="Role for variants that name none; empty: the caller's own role, else the freest.",
        examples=["worker"],
    )  # fmt: skip
    run_max_attempts: Count = Field(
        3, description="How often a run may lose its worker before it fails as `worker_lost`."
    )
    run_timeout_s: Seconds = Field(3600.0, description="Longest time of one attempt.")
    queue_timeout_s: Seconds = Field(3600.0, description="Longest time that a run waits for a worker; then it fails.")
    stop_deadline_s: Seconds = Field(
        10.0,
        description="Time after SIGTERM at which a worker hands back even what is in the middle of a node, and ends.",
    )
    run_max_events: Count = Field(
        10_000, description="Progress, token and log events of a run beyond this number are dropped with a note."
    )
    output_max_bytes: Count = Field(4_000_000, description="Larger outputs of a node or run are cut with a note.")
    input_max_bytes: Count = Field(8_000_000, description="Larger inputs are refused.")
    role_depth_cap: Count = Field(100_000, description="Runs that may wait for one role; more are answered 429.")
    node_modules: Modules = Field(
        "", description="Python modules with handlers, comma-separated.", examples=["mycompany.nodes,mycompany.more"]
    )
    health_modules: Modules = Field(
        "", description="Python modules with health checks, comma-separated.", examples=["examples.gpu_probe"]
    )
    admin_host: str = Field("127.0.0.1", description="Address that the admin app binds to.")
    admin_port: Port = Field(8000, description="Port of the admin app.")
    redis_port: Port = Field(6390, description="Port of the embedded Valkey.")
    mongo_port: Port = Field(27090, description="Port of the embedded MongoDB-protocol server.")
    data_dir: Path = Field(Path(".data"), description="Folder of the embedded servers' data and of node-name locks.")
    key_prefix: Annotated[str, AfterValidator(_prefix)] = Field(
        "rolecall:", description="What our own keys and channels in Redis begin with."
    )
    secret_key: str = Field(
        "",
        description="Signs the admin app's cookies. Default: a random one for each process.",
        repr=False,
        examples=["64-random-characters"],
    )
    socket_timeout_s: Seconds = Field(2.0, description="Longest wait for one answer of Redis, broker or Mongo.")

    @classmethod
    def settings_customise_sources(  # type: ignore[override] # the three other sources are not used
        cls, _: type[BaseSettings], init_settings: PydanticBaseSettingsSource, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # `load_settings` passes the environment in: so tests and several apps in one process need no tricks.
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _servers(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Fill in the addresses that follow from others."""
        values = {key: value for key, value in values.items() if value not in ("", None)}
        redis = values.setdefault("redis_url", f"redis://127.0.0.1:{values.get('redis_port', 6390)}/0")
        values.setdefault("broker_url", redis)
        values.setdefault("mongo_url", f"mongodb://127.0.0.1:{values.get('mongo_port', 27090)}/rolecall")
        return values

    @model_validator(mode="after")
    def _times_fit(self) -> Settings:
        for name in ("heartbeat_ttl_s", "lease_ttl_s"):
            if getattr(self, name) < 3 * self.heartbeat_interval_s:
                raise ValueError(
                    f"{name.upper()}={getattr(self, name):g} must be at least 3 x HEARTBEAT_INTERVAL_S="
                    f"{self.heartbeat_interval_s:g}: two lost beats must not look like a death. "
                    f"Example: {name.upper()}={3 * self.heartbeat_interval_s:g}"
                )
        return self

    @property
    def executes(self) -> bool:
        """Whether a Celery worker with these settings runs flows (a dispatcher does not)."""
        return self.service_role != DISPATCHER

    @property
    def admin_url(self) -> str:
        """Where a process on this machine reaches the admin app."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.admin_host, self.admin_host)  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.admin_port}"

    @cached_property
    def node_module_list(self) -> list[str]:
        return _split(self.node_modules)

    @cached_property
    def health_module_list(self) -> list[str]:
        return _split(self.health_modules)


def load_settings(environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Read the settings from ``environ`` (default: this process's environment); ``overrides`` win.

    Raises:
        SettingError: naming the setting, the fault and an example.
    """
    environ = os.environ if environ is None else environ
    given: dict[str, Any] = {
        name: environ[name.upper()] for name in Settings.model_fields if environ.get(name.upper(), "") != ""
    }
    given |= overrides
    try:
        return Settings(**given)
    except ValidationError as error:
        items: list[dict[str, Any]] = [dict(item) for item in error.errors(include_url=False)]
        # A value that only follows from another one has that one's fault.
        own = [item for item in items if not item["loc"] or item["loc"][0] in given]
        raise SettingError("\n".join(map(_say, own or items))) from None


def _say(item: dict[str, Any]) -> str:
    fault = plain_fault(item)
    if not item["loc"]:
        return fault
    name = str(item["loc"][0])
    field = Settings.model_fields[name]
    example = field.examples[0] if field.examples else field.default
    if isinstance(example, float):
        example = f"{example:g}"
    shown = "" if name in ("secret_key", "redis_url", "broker_url", "mongo_url") else f"={str(item['input'])[:80]!r}"
    return f"{name.upper()}{shown}: {fault}. Example: {name.upper()}={example}"


def _split(text: str) -> list[str]:
    return [part for part in (piece.strip() for piece in text.split(",")) if part]
