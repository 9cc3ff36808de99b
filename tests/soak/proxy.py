"""A TCP proxy on loopback that can cut all of its connections, or let nothing through for a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from threading import Event, Thread
from typing import Any

from tests.servers import free_port

CHUNK = 65_536


class Proxy:
    """Forwards ``127.0.0.1:port`` to ``127.0.0.1:target``, in a thread of its own."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._started = Event()
        self._server: asyncio.Server | None = None
        self._thread = Thread(target=self._run, name=f"proxy {self.port}", daemon=True)
        self._thread.start()
        self._started.wait(5)

    def drop(self) -> int:
        """Cut every connection; return how many there were. New ones are served."""
        return int(self._call(self._drop()))

    def stall(self) -> None:
        """Let nothing through, but keep connections and take new ones: what a firewall that swallows packets does."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def resume(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.set)

    def close(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _call(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512)
        self._server = self._loop.run_until_complete(serving)
        self._started.set()
        self._loop.run_forever()

    async def _drop(self) -> int:
        cut = len(self._open) // 2
        for writer in list(self._open):
            writer.transport.abort()
        return cut

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        self._flows.set()
        await self._drop()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=5)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._open.add(writer)
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self._target)
            self._open.add(there)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, there))
                both.create_task(self._pump(back, writer))
        except* OSError:
            pass
        finally:
            for each in (writer, there):
                if each is not None:
                    self._open.discard(each)
                    each.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(CHUNK):
            await self._flows.wait()
            sink.write(data)
            await sink.drain()
        # One side has said goodbye: so does the other, which ends the other pump too.
        with contextlib.suppress(OSError):
            sink.write_eof()
