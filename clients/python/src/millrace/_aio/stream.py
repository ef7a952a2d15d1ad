"""One stream of events over any number of connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType

import httpx

from .._clock import async_sleep, monotonic
from .._follow import Event, Follower
from .._requests import Request
from .._retry import Attempts, is_transient, retry_after
from ..errors import GatewayUnreachable, MillraceError, UnexpectedResponse
from ..types import StreamNoticeEnd
from .transport import AsyncTransport, content_type, error_of

STEADY_TIME = 10.0
"""The time in seconds after which a connection counts as progress, even if no event has arrived."""


class AsyncEventStream:
    """The events of a run: an iterator that connects again by itself, and ends after the end of the run.

    No event is missing or there twice, whatever was cut in between. Close the stream, or use it in a `with` block,
    if you leave it before its end.
    """

    def __init__(self, transport: AsyncTransport, request: Request, follower: Follower) -> None:
        self._transport = transport
        self._request = request
        self._follower = follower
        self._attempts = Attempts(transport.retry, transport.retry.stream_time)
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._connected_at = 0.0
        self._is_closed = False

    @property
    def last_id(self) -> str | None:
        """The id of the last event that was received; `events(after=…)` continues after it."""
        return self._follower.last_id

    @property
    def end(self) -> StreamNoticeEnd | None:
        """The notice of the end: the last position, and whether the run can be resumed. `None` until then."""
        return self._follower.end

    def __aiter__(self) -> AsyncEventStream:
        return self

    async def __anext__(self) -> Event:
        while True:
            event = self._follower.take()
            if event is not None:
                return event
            if self._is_closed:
                raise StopAsyncIteration
            if self._follower.is_complete:
                await self.aclose()
                if self._follower.failure is not None:
                    raise self._follower.failure
                raise StopAsyncIteration
            await self._read()

    async def __aenter__(self) -> AsyncEventStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection, and ends the iteration."""
        self._is_closed = True
        await self._disconnect()

    async def _read(self) -> None:
        """Reads the next bytes. Connects first if there is no connection, and waits if that fails."""
        try:
            if self._chunks is None:
                self._chunks = await self._connect()
                if self._chunks is None:
                    return
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            await self._fail(None)
        except httpx.TransportError as error:
            await self._fail(error)
        else:
            await self._add(chunk)

    async def _add(self, chunk: bytes) -> None:
        has_advanced = self._follower.feed(chunk)
        if has_advanced or monotonic() - self._connected_at > STEADY_TIME:
            self._attempts.progress()
        if self._follower.is_complete:
            await self._disconnect()
        elif self._follower.is_connection_done:
            await self._fail(None)

    async def _connect(self) -> AsyncIterator[bytes] | None:
        """Opens a connection. Returns `None` after a failure that may pass."""
        self._follower.connect()
        response = await self._transport.open_stream(self._request, self._follower.last_id)
        self._response, self._connected_at = response, monotonic()
        if response.status_code == 200 and content_type(response).startswith("text/event-stream"):
            return response.aiter_bytes()
        if response.status_code == 200:
            await self.aclose()
            raise UnexpectedResponse(200, f"the media type is {content_type(response)!r}, not text/event-stream")
        await response.aread()
        failure = error_of(response)
        if not is_transient(response.status_code, content_type(response)):
            await self.aclose()
            raise failure
        await self._fail(failure, retry_after(response.headers.get("retry-after")))
        return None

    async def _disconnect(self) -> None:
        response, self._response, self._chunks = self._response, None, None
        if response is not None:
            await response.aclose()

    async def _fail(self, error: Exception | None, at_least: float = 0.0) -> None:
        """Closes the connection, and waits before the next one."""
        await self._disconnect()
        delay = self._attempts.fail(monotonic(), at_least)
        if delay is None:
            self._is_closed = True
            if isinstance(error, MillraceError):
                raise error
            text = f"the event stream of {self._request.path} has failed for {self._attempts.limit} s"
            raise GatewayUnreachable(f"{text}; continue it after {self.last_id!r}") from error
        await async_sleep(delay)
