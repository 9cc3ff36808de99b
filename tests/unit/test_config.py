"""Settings: read once, refused with the setting's name, the fault and an example; and their page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.config import Settings, load_settings
from app.errors import SettingError

SECRETS = ("redis_url", "broker_url", "mongo_url", "secret_key")


def refusal(**environ: str) -> str:
    with pytest.raises(SettingError) as refused:
        load_settings({name.upper(): value for name, value in environ.items()})
    return str(refused.value)


# --- reading ---------------------------------------------------------------------------------------------------------


def test_every_setting_has_a_default() -> None:
    settings = load_settings({})
    assert settings.service_role == "api"
    assert (settings.heartbeat_interval_s, settings.heartbeat_ttl_s, settings.lease_ttl_s) == (10, 30, 30)
    assert (settings.admin_host, settings.admin_port) == ("127.0.0.1", 8000)
    assert settings.data_dir == Path(".data")


def test_servers_follow_from_the_embedded_ports() -> None:
    settings = load_settings({"REDIS_PORT": "7001", "MONGO_PORT": "7002"})
    assert settings.redis_url == settings.broker_url == "redis://127.0.0.1:7001/0"
    assert settings.mongo_url == "mongodb://127.0.0.1:7002/rolecall"


def test_the_broker_follows_from_redis_unless_it_is_named() -> None:
    assert load_settings({"REDIS_URL": "rediss://h/1"}).broker_url == "rediss://h/1"
    assert load_settings({"REDIS_URL": "rediss://h/1", "BROKER_URL": "amqp://h//"}).broker_url == "amqp://h//"


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert load_settings({name.upper(): "" for name in Settings.model_fields}) == load_settings({})


def test_numbers_are_read_from_text_and_other_variables_are_ignored() -> None:
    settings = load_settings({"HEARTBEAT_INTERVAL_S": "0.5", "RUN_MAX_EVENTS": "7", "PATH": "/bin", "admin_port": "1"})
    assert (settings.heartbeat_interval_s, settings.run_max_events, settings.admin_port) == (0.5, 7, 8000)


def test_overrides_win_over_the_environment() -> None:
    assert load_settings({"ADMIN_PORT": "9000"}, admin_port=9001).admin_port == 9001


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_ROLE", "gpu-worker")
    assert load_settings().service_role == "gpu-worker"
    assert load_settings({}).service_role == "api"


def test_lists_of_modules_are_split() -> None:
    settings = load_settings({"NODE_MODULES": "a.b, c ,,", "HEALTH_MODULES": ""})
    assert (settings.node_module_list, settings.health_module_list) == (["a.b", "c"], [])


def test_a_dispatcher_is_a_role_of_a_process_and_executes_nothing() -> None:
    assert not load_settings({"SERVICE_ROLE": "dispatcher"}).executes
    assert load_settings({"SERVICE_ROLE": "worker"}).executes


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(Exception, match="frozen"):
        load_settings({}).admin_port = 1


# --- refusing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("service_role", "GPU Worker", "'GPU Worker' is not a role: it must be 1 to 64 of a-z"),
        ("service_role", "celery", "'celery' is reserved"),
        ("default_role", "dispatcher", "'dispatcher' is reserved"),
        ("default_role", "A", "'A' is not a role"),
        ("redis_url", "http://h", "must begin with one of redis://, rediss://"),
        ("redis_url", "redis+cluster://h", "is a Redis Cluster"),
        ("redis_url", "redis://[::1", "is no URL"),
        ("broker_url", "kafka://h", "must begin with one of redis://"),
        ("mongo_url", "mysql://h", "must begin with one of mongodb://, mongodb+srv://"),
        ("heartbeat_interval_s", "0", "must be more than 0, not '0'"),
        ("heartbeat_interval_s", "soon", "must be a finite number, not 'soon'"),
        ("heartbeat_interval_s", "nan", "must be a finite number, not 'nan'"),
        ("socket_timeout_s", "inf", "must be a finite number, not 'inf'"),
        ("run_timeout_s", "1e9", "must be at most 2,592,000, not '1e9'"),
        ("run_max_attempts", "1.5", "must be a whole number, not '1.5'"),
        ("run_max_attempts", "0", "must be at least 1, not '0'"),
        ("admin_port", "65536", "must be at most 65,535, not '65536'"),
        ("node_modules", "a b", "'a b' is not the name of a Python module"),
        ("health_modules", "a,1b", "'1b' is not the name of a Python module"),
        ("key_prefix", "a b", "must be ASCII without spaces"),
        ("key_prefix", "a{b}", "must be ASCII without spaces"),
        ("key_prefix", "é", "must be ASCII without spaces"),
    ],
)
def test_a_wrong_value_is_refused_with_name_fault_and_example(name: str, value: str, fault: str) -> None:
    (line,) = refusal(**{name: value}).splitlines()
    assert line.startswith(name.upper())
    assert fault in line
    assert f"Example: {name.upper()}=" in line


@pytest.mark.parametrize("name", ["heartbeat_ttl_s", "lease_ttl_s"])
def test_a_time_to_live_covers_two_lost_beats(name: str) -> None:
    assert load_settings({name.upper(): "30"})
    assert refusal(**{name: "29.9"}) == (
        f"{name.upper()}=29.9 must be at least 3 x HEARTBEAT_INTERVAL_S=10: two lost beats must not look like a death. "
        f"Example: {name.upper()}=30"
    )


def test_all_wrong_values_are_told_at_once() -> None:
    assert len(refusal(admin_port="x", key_prefix=" ", service_role="A").splitlines()) == 3


def test_a_wrong_redis_is_not_blamed_on_the_broker_that_follows_from_it() -> None:
    assert "BROKER_URL" not in refusal(redis_url="http://h")


@pytest.mark.parametrize("name", SECRETS[:3])
@pytest.mark.parametrize(
    "url", ["http://u:geheim@h", "x+cluster://u:geheim@h", "redis://u:geheim@h\u2100", "//[geheim"]
)
def test_no_message_quotes_a_password(name: str, url: str) -> None:
    assert "geheim" not in refusal(**{name: url})


def test_no_representation_shows_a_password() -> None:
    urls = {"REDIS_URL": "redis://:geheim@h", "BROKER_URL": "amqp://u:geheim@h", "MONGO_URL": "mongodb://u:geheim@h"}
    assert "geheim" not in repr(load_settings(urls | {"SECRET_KEY": "geheim"}))


# --- the page --------------------------------------------------------------------------------------------------------


def row(name: str) -> str:
    field = Settings.model_fields[name]
    example = field.examples[0] if field.examples else field.default
    cells = (f"`{name.upper()}`", _code(field.default), field.description, f"`{name.upper()}={_plain(example)}`")
    return f"| {' | '.join(map(str, cells))} |"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _code(value: Any) -> str:
    return f"`{_plain(value)}`" if _plain(value) else ""


def test_the_page_has_a_row_for_every_setting_and_no_other(repository: Path) -> None:
    page = (repository / "docs" / "settings.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [row(name) for name in Settings.model_fields]


def test_every_setting_is_described_and_its_example_is_right() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        if field.examples:
            assert load_settings({name.upper(): str(field.examples[0])}), name
