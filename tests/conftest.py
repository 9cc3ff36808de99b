"""Fixtures that every kind of test may use."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.stack.servers import mongo_command, valkey_command
from tests.servers import free_port, running


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real Valkey that lives as long as the test session."""
    folder, port = tmp_path_factory.mktemp("valkey"), free_port()
    with running(valkey_command(port, folder), port, folder / "server.log"):
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture(scope="session")
def mongo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL, without a database, of a real MongoDB-protocol server that lives as long as the test session."""
    folder, port = tmp_path_factory.mktemp("mongo"), free_port()
    with running(mongo_command(port, folder), port, folder / "server.log"):
        yield f"mongodb://127.0.0.1:{port}"


@pytest.fixture
def key_prefix() -> str:
    """A prefix of Redis keys that no other test has."""
    return f"t{uuid.uuid4().hex[:12]}:"


@pytest.fixture
def mongo_url(mongo_server: str) -> str:
    """The URL of a database that no other test has."""
    return f"{mongo_server}/t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent
