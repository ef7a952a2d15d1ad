"""The state of an event stream over any number of connections. Pure: bytes of responses in, events out.

The position of the stream is the id of the last event that was received whole. A connection that is opened after a cut
continues after it, and what arrives twice is dropped.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import Any, cast

from ._sse import Message, StreamParser
from .errors import StreamError
from .types import EntryLine, EventLine, StreamNotice, StreamNoticeEnd


@dataclass(frozen=True)
class Event:
    """An event of a run."""

    id: str | None
    """Its position, such as `17.0`; `None` for `delta` and `lagged`, which are not part of the log."""
    type: str
    """Its name, such as `task_completed`; `step` for an entry of a journal."""
    data: EventLine | EntryLine | StreamNotice
    """Its fields, by the types of `millrace.types`."""

    @property
    def task(self) -> str | None:
        """The task that it is about."""
        return cast("str | None", self.data.get("task"))

    @property
    def sequence(self) -> int | None:
        """The sequence of its message in the log, as `Run.get(at=…)` accepts it."""
        if self.id is None:
            return None
        sequence = self.data.get("sequence") if isinstance(self.data, dict) else None
        return sequence if isinstance(sequence, int) else parse_position(self.id)[0]

    def __getitem__(self, name: str) -> Any:
        """Returns a field of the data."""
        return cast("dict[str, Any]", self.data)[name]


def parse_position(id: str) -> tuple[int, int]:
    """Returns the sequence and the index of an event's id. A sequence alone names the last event of its message."""
    sequence, dot, index = id.partition(".")
    if not (sequence.isdecimal() and (index.isdecimal() if dot else True)):
        raise ValueError(f"{id!r} is no event id; it has the form SEQUENCE.INDEX, such as 17.0")
    return int(sequence), int(index) if dot else 2**32 - 1


class Follower:
    """The state of a stream: its position, and the events that were received and not yet taken."""

    def __init__(self, after: str | None, shows_lag: bool, of_all_runs: bool = False) -> None:
        # The ids of the stream of all runs are opaque: the gateway alone compares them.
        self._of_all_runs = of_all_runs
        self._received = 0
        # Without model output, a slow reader misses nothing, so that only `live` shows `lagged`.
        self.last_id = after
        """The id of the last event that was received."""
        self.end: StreamNoticeEnd | None = None
        """The notice of the end, once it has arrived."""
        self.failure: StreamError | None = None
        """The reason why the gateway cannot continue; it counts after the events that were received before."""
        self._position = (-1, -1) if after is None or of_all_runs else parse_position(after)
        self._shows_lag = shows_lag
        self._parser = StreamParser()
        self._events: deque[Event] = deque()
        self._is_stopping = False

    def connect(self) -> None:
        """Notes that a new connection was opened: what the last one left unfinished is void."""
        self._parser = StreamParser()
        self._is_stopping = False

    def feed(self, chunk: bytes) -> bool:
        """Adds bytes of the connection. Returns `True` if an event of the log was among them."""
        received = self._received
        for message in self._parser.feed(chunk):
            self._add(message)
        return self._received > received

    def take(self) -> Event | None:
        """Returns the next event."""
        return self._events.popleft() if self._events else None

    @property
    def is_connection_done(self) -> bool:
        """`True` if nothing more follows on this connection."""
        return self._is_stopping or self.is_complete

    @property
    def is_complete(self) -> bool:
        """`True` if nothing more follows on any connection."""
        return self.end is not None or self.failure is not None

    def _add(self, message: Message) -> None:
        data = json.loads(message.data)
        if message.id is not None:
            if self._is_new(message.id):
                self._received += 1
                self.last_id = message.id
                self._events.append(Event(message.id, message.name, data))
        elif message.name == "end":
            self.end = data
        elif message.name == "gateway_stopping":
            self._is_stopping = True
        elif message.name == "error":
            self.failure = StreamError(f"run {data.get('run')}: {data.get('message')}")
        elif message.name in ("delta", "run_summary") or (message.name == "lagged" and self._shows_lag):
            self._events.append(Event(None, message.name, data))

    def _is_new(self, id: str) -> bool:
        if self._of_all_runs:
            return id != self.last_id
        position = parse_position(id)
        is_new = position > self._position
        self._position = max(position, self._position)
        return is_new
