"""The connection to MongoDB: made late, bounded in every wait, and the one place that sees the driver's errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from inspect import isfunction
from typing import Any, ParamSpec, TypeVar

from pymongo import MongoClient
from pymongo.errors import DocumentTooLarge, PyMongoError
from pymongo.uri_parser import parse_uri

from app.errors import BadRequest, ServerUnavailable, SettingError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


class LazyClient:
    """A client that connects on first use, and anew in a forked child. Thread-safe.

    Raises:
        SettingError: ``url`` cannot be read.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        _check(url)
        self._url = url
        self._timeout_ms = max(1, int(timeout_s * 1000))
        # By process id. A child keeps its parent's client unused, since closing it would talk on the parent's sockets.
        self._clients: dict[int, MongoClient[dict[str, Any]]] = {}

    def get(self) -> MongoClient[dict[str, Any]]:
        client = self._clients.get(os.getpid())
        if client is not None:
            return client
        made: MongoClient[dict[str, Any]] = MongoClient(
            self._url,
            appname="rolecall",
            serverSelectionTimeoutMS=self._timeout_ms,
            connectTimeoutMS=self._timeout_ms,
            socketTimeoutMS=self._timeout_ms,
            timeoutMS=self._timeout_ms,
            w="majority",
            journal=True,
        )
        # No lock: one that another thread holds during a fork would stay locked in the child.
        client = self._clients.setdefault(os.getpid(), made)
        if client is not made:
            made.close()
        return client

    def close(self) -> None:
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()


def _check(url: str) -> None:
    if url.startswith("mongodb+srv:"):
        return  # only a name server can say what it means
    try:
        parse_uri(url)
    except (ValueError, PyMongoError):
        # The driver's own words may quote the password.
        raise SettingError(
            "MONGO_URL: is no URL that the driver can read; a password must be percent-encoded. "
            "Example: MONGO_URL=mongodb://127.0.0.1:27017/rolecall"
        ) from None


def translating(adapter: C) -> C:
    """Decorate a class so that no public method lets an error of the driver out."""
    for name, member in list(vars(adapter).items()):
        if isfunction(member) and not name.startswith("_"):
            setattr(adapter, name, _translate(member))
    return adapter


def _translate(method: Callable[P, R]) -> Callable[P, R]:
    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except PyMongoError as error:
            raise ServerUnavailable("mongo", _detail(error)) from error
        except DocumentTooLarge as error:
            raise BadRequest("it is larger than MongoDB stores, which is 16 MB", code="too_large") from error
        except UnicodeEncodeError as error:
            raise BadRequest("a text in it has a lone surrogate, which is no character") from error

    return call


def _detail(error: PyMongoError) -> str:
    # Messages end with a dump of what the driver thinks of the servers.
    return f"{type(error).__name__}: {str(error).split(', Timeout:')[0].split(', full error:')[0][:300]}"
