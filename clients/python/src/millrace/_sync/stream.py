"""One stream of events over any number of connections."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

import httpx

from .._clock import monotonic, sleep
from .._follow import Event, Follower
from .._requests import Request
from .._retry import Attempts, is_transient, retry_after
from ..errors import GatewayUnreachable, MillraceError, UnexpectedResponse
from ..types import StreamNoticeEnd
from .transport import Transport, content_type, error_of

STEADY_TIME = 10.0
"""The time in seconds after which a connection counts as progress, even if no event has arrived."""


class EventStream:
    """The events of a run: an iterator that connects again by itself, and ends after the end of the run.

    No event is missing or there twice, whatever was cut in between. Close the stream, or use it in a `with` block,
    if you leave it before its end.
    """

    def __init__(self, transport: Transport, request: Request, follower: Follower) -> None:
        self._transport = transport
        self._request = request
        self._follower = follower
        self._attempts = Attempts(transport.retry, transport.retry.stream_time)
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] | None = None
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

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> Event:
        while True:
            event = self._follower.take()
            if event is not None:
                return event
            if self._is_closed:
                raise StopIteration
            if self._follower.is_complete:
                self.close()
                if self._follower.failure is not None:
                    raise self._follower.failure
                raise StopIteration
            self._read()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection, and ends the iteration."""
        self._is_closed = True
        self._disconnect()

    def _read(self) -> None:
        """Reads the next bytes. Connects first if there is no connection, and waits if that fails."""
        try:
            if self._chunks is None:
                self._chunks = self._connect()
                if self._chunks is None:
                    return
            chunk = next(self._chunks)
        except StopIteration:
            self._fail(None)
        except httpx.TransportError as error:
            self._fail(error)
        else:
            self._add(chunk)

    def _add(self, chunk: bytes) -> None:
        has_advanced = self._follower.feed(chunk)
        if has_advanced or monotonic() - self._connected_at > STEADY_TIME:
            self._attempts.progress()
        if self._follower.is_complete:
            self._disconnect()
        elif self._follower.is_connection_done:
            self._fail(None)

    def _connect(self) -> Iterator[bytes] | None:
        """Opens a connection. Returns `None` after a failure that may pass."""
        self._follower.connect()
        response = self._transport.open_stream(self._request, self._follower.last_id)
        self._response, self._connected_at = response, monotonic()
        if response.status_code == 200 and content_type(response).startswith("text/event-stream"):
            return response.iter_bytes()
        if response.status_code == 200:
            self.close()
            raise UnexpectedResponse(200, f"the media type is {content_type(response)!r}, not text/event-stream")
        response.read()
        failure = error_of(response)
        if not is_transient(response.status_code, content_type(response)):
            self.close()
            raise failure
        self._fail(failure, retry_after(response.headers.get("retry-after")))
        return None

    def _disconnect(self) -> None:
        response, self._response, self._chunks = self._response, None, None
        if response is not None:
            response.close()

    def _fail(self, error: Exception | None, at_least: float = 0.0) -> None:
        """Closes the connection, and waits before the next one."""
        self._disconnect()
        delay = self._attempts.fail(monotonic(), at_least)
        if delay is None:
            self._is_closed = True
            if isinstance(error, MillraceError):
                raise error
            text = f"the event stream of {self._request.path} has failed for {self._attempts.limit} s"
            raise GatewayUnreachable(f"{text}; continue it after {self.last_id!r}") from error
        sleep(delay)
