"""Lua scripts on a Redis server, and the few connections that they go over.

A script is asked and answered in one round trip, or sent without waiting: its :class:`Reply` then comes along with the
answer to the next script on the same connection, so that two scripts one after another cost one switch to the server
and back. The server runs the scripts of one connection in the order in which they were sent.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final

import hiredis
import redis
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool

from app.errors import OutOfMemory, ServerUnavailable

logger = logging.getLogger(__name__)

KEPT_CONNECTIONS: Final = 4
"""So many of them go from one script to the next without passing through the pool."""
FRESH_S: Final = 0.02
"""A connection that was in use so shortly ago is not looked at again before it is used."""

ASK_AGAIN_S: Final = 0.05

Word = str | bytes | int | float


class Script:
    """A Lua script: one round trip a call, also after the server has forgotten its scripts."""

    def __init__(self, wires: Callable[[], Wires], source: str) -> None:
        self._wires = wires
        self._source = source
        self._sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, keys: Sequence[str] = (), args: Sequence[Word] = ()) -> Any:
        """Run it.

        Raises:
            OutOfMemory: the script writes, lacks ``allow-oom``, and the server is full.
            ServerUnavailable: no answer in time, or the server refused it.
        """
        try:
            wires = self._wires()
            wire = wires.take()
            try:
                wire.send("EVALSHA", self._sha, len(keys), *keys, *args)
                return wire.read()
            except redis.exceptions.NoScriptError:
                wire.send("EVAL", self._source, len(keys), *keys, *args)
                return wire.read()
            finally:
                wires.put(wire)
        except redis.RedisError as error:
            raise translate(error) from error

    def send(self, keys: Sequence[str] = (), args: Sequence[Word] = ()) -> Reply:
        """Send it and do not wait for the answer (no round trip).

        Raises:
            ServerUnavailable: it could not be sent, or not as a whole; in neither case is it run.
        """
        try:
            wires = self._wires()
            wire = wires.take()
            try:
                wire.send("EVALSHA", self._sha, len(keys), *keys, *args)
                reply = wire.owe(Reply(wires, wire, lambda: self(keys, args)))
            finally:
                wires.put(wire)
        except redis.RedisError as error:
            raise translate(error) from error
        return reply


class Reply:
    """The answer to a script that was sent and not waited for.

    Whoever uses the connection next reads it on the way; :meth:`get` reads it if nobody did.
    """

    __slots__ = ("_again", "_answer", "_error", "_unread", "_wire", "_wires")

    def __init__(self, wires: Wires, wire: Wire, again: Callable[[], Any]) -> None:
        self._wires = wires
        self._wire = wire
        self._again = again
        self._answer: Any = None
        self._error: redis.RedisError | None = None
        # Held until the answer is read or lost for good.
        self._unread = Lock()
        self._unread.acquire()

    def known(self) -> bool:
        """Return whether :meth:`get` needs not wait."""
        return not self._unread.locked()

    def get(self) -> Any:
        """Return the answer (at most one round trip).

        Raises:
            OutOfMemory, ServerUnavailable: as the script itself does when it is called. It may have taken effect.
        """
        while not self.known():
            self._wires.settle(self._wire)
            # Otherwise somebody has the connection, who waits no longer for the server than anybody does.
            if self._unread.acquire(timeout=ASK_AGAIN_S):
                self._unread.release()
        if isinstance(self._error, redis.exceptions.NoScriptError):
            return self._again()
        if self._error is not None:
            raise translate(self._error) from self._error
        return self._answer

    def read(self, connection: Any) -> None:
        """Read the answer, which is the next on the connection; raise if the connection is broken with that."""
        try:
            if not connection.is_connected:
                raise redis.ConnectionError("the connection was lost before the answer came")
            self._answer = connection.read_response()
        except redis.ResponseError as error:
            self._error = error
        except BaseException as error:
            lost = redis.ConnectionError("whoever read the answer was ended")
            self._error = error if isinstance(error, redis.RedisError) else lost
            raise
        finally:
            self._unread.release()


class Wire:
    """A connection as scripts use it, with the reply that is still to be read from it, if there is one."""

    __slots__ = ("connection", "owed", "used_at")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.owed: Reply | None = None
        self.used_at = 0.0

    def send(self, *words: Word) -> None:
        # Packed here, for the client looks at every word of a command first. A ping in between, which asks whether a
        # long unused connection still lives, would take the answer that is owed for its own.
        packed = hiredis.pack_command(words)  # type: ignore[arg-type] # its stub knows tuples of one word only
        self.connection.send_packed_command([packed], check_health=self.owed is None)

    def read(self) -> Any:
        """Return the answer to what was sent last, and read what was owed before."""
        if self.owed is not None:
            self.settle()
        return self.connection.read_response()

    def owe(self, reply: Reply) -> Reply:
        """Leave the answer to what was sent last for later."""
        self.settle()
        self.owed = reply
        return reply

    def settle(self) -> None:
        """Read the reply that is owed."""
        owed, self.owed = self.owed, None
        if owed is not None:
            owed.read(self.connection)


class Wires:
    """The connections of a pool that scripts use in turn: the pool's own book-keeping is half of what a call costs.

    They stay the pool's: it made them, counts them as in use, and is given each one that is not plainly sound. Safe to
    share between threads; one a process.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        self._kept: list[Wire] = []
        # Behind Sentinel the pool alone knows whether a connection still leads to the master.
        self._most = 0 if isinstance(pool, SentinelConnectionPool) else KEPT_CONNECTIONS

    def take(self) -> Wire:
        """Return a wire that nobody else uses until :meth:`put`; it may owe a reply."""
        try:
            wire = self._kept.pop()
        except IndexError:
            return Wire(self._pool.get_connection())
        if wire.owed is not None or time.monotonic() - wire.used_at < FRESH_S:
            return wire
        sound = False
        try:
            sound = _is_sound(wire.connection)
        finally:
            # Also where a greenlet is ended just here: the pool would count it as in use for ever.
            if not sound:
                self._pool.release(wire.connection)
        return wire if sound else Wire(self._pool.get_connection())

    def put(self, wire: Wire) -> None:
        """Take a wire back. The client has closed it if an answer was not read to its end; the pool mends it then."""
        if not (self._most and wire.connection.is_connected):
            self._give_back(wire)
            return
        wire.used_at = time.monotonic()
        self._kept.append(wire)
        if len(self._kept) > self._most:
            # Afterwards, for several threads may come at once; the oldest, which is the least likely to be used.
            try:
                surplus = self._kept.pop(0)
            except IndexError:
                return
            self._give_back(surplus)

    def _give_back(self, wire: Wire) -> None:
        try:
            wire.settle()
        except redis.RedisError:
            pass  # whoever asks for the reply is told
        finally:
            self._pool.release(wire.connection)

    def settle(self, wire: Wire) -> None:
        """Read the reply that a wire owes, unless somebody uses it, and so reads it."""
        try:
            self._kept.remove(wire)
        except ValueError:
            return
        try:
            wire.settle()
        except redis.RedisError:
            pass  # whoever asks for the reply is told
        finally:
            self.put(wire)


def _is_sound(connection: Any) -> bool:
    """Return whether a connection is open and quiet: the server has not closed it, and owes no answer."""
    try:
        return connection.is_connected and not connection.can_read()
    except redis.RedisError:
        return False


def translate(error: redis.RedisError) -> ServerUnavailable:
    """Return the error of ours for one of redis-py; its text has no password."""
    if isinstance(error, redis.exceptions.OutOfMemoryError):
        return OutOfMemory("it is at its memory limit (maxmemory) and stores nothing more")
    if isinstance(error, redis.TimeoutError):
        return ServerUnavailable("redis", "no answer in time")
    if isinstance(error, MasterNotFoundError):
        return ServerUnavailable("redis", "no Sentinel that answers knows a primary of the service")
    if type(error) is redis.ResponseError:
        # The server did answer: a fault of a script or a command of ours, which has to be seen and not waited for.
        logger.error("Redis refused a command: %s", error)
    return ServerUnavailable("redis", str(error) or type(error).__name__)
