"""Event streams over connections that are cut."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time

import pytest
from clients import FAST, both, read_events
from server import ReceivedRequest, Reply, ScriptedServer, problem, response, stream_response

from millrace import AsyncClient, Client, Event, GatewayUnreachable, RetryPolicy, StreamError
from millrace._follow import parse_position
from millrace.errors import ClusterUnavailable, InvalidRequest, RunNotFound, UnexpectedResponse

SEEDS = range(50)


def frame(id: str | None, name: str, **data: object) -> bytes:
    text = json.dumps({"type": name, **data}, ensure_ascii=False)
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {name}\ndata: {text}\n\n".encode()


def log_of(random: random.Random) -> list[tuple[str, bytes]]:
    """Returns a log of events with ids like those of the gateway: with gaps, and several events of one sequence."""
    log, sequence = [], 0
    for number in range(random.randint(5, 40)):
        sequence += random.randint(1, 9)
        for index in range(random.choice([1, 1, 1, 2, 5])):
            id = f"{sequence}.{index}"
            name = random.choice(["task_added", "task_completed", "step"])
            text = "ä€𝄞\n" * random.choice([0, 1, 40])
            log.append((id, frame(id, name, number=number, text=text)))
    return log


class UnreliableGateway:
    """Serves a log from the client's position on, and cuts its connections at random bytes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = log_of(self.random)
        self.cuts = 0

    def serve(self, request: ReceivedRequest) -> Reply | bytes:
        fault = self.random.random()
        if self.cuts >= 25:
            fault = 1.0
        if fault < 0.05:
            return problem(503, "cluster-unavailable")
        if fault < 0.08:
            return response(502, b"<html>bad gateway</html>", "text/html")
        last = request.headers.get("last-event-id")
        position = (-1, -1) if last is None else parse_position(last)
        rest = [bytes for id, bytes in self.log if parse_position(id) > position]
        frames = [b": millrace events\n\n"]
        for bytes in rest:
            frames.append(bytes)
            if self.random.random() < 0.2:
                frames.append(self.random.choice([b": keep-alive\n\n", frame(None, "lagged", last="x")]))
        if fault < 0.15:
            # A proxy repeats the last event that the client has.
            frames[1:1] = [bytes for id, bytes in self.log if parse_position(id) == position]
        if fault < 0.25:
            frames = [*frames[: self.random.randint(1, len(frames))], frame(None, "gateway_stopping", run="r")]
            return stream_response(frames, is_chunked=True)
        frames.append(frame(None, "end", run="r", last=self.log[-1][0], resumable=False))
        whole = stream_response(self.split(b"".join(frames)), is_chunked=self.random.random() < 0.5)
        if fault < 0.9:
            self.cuts += 1
            # Half of the cuts are near the beginning, so that a stream takes many connections.
            longest = min(len(whole), self.random.choice([300, len(whole)]))
            return Reply(whole, self.random.randint(0, longest), is_reset=self.random.random() < 0.3)
        return whole

    def split(self, data: bytes) -> list[bytes]:
        pieces = []
        while data:
            size = self.random.choice([1, 7, 100, 5000])
            pieces.append(data[:size])
            data = data[size:]
        return pieces


@both
@pytest.mark.parametrize("seed", SEEDS)
def test_cut_streams_deliver_every_event_once(kind: str, seed: int) -> None:
    gateway = UnreliableGateway(seed)
    with ScriptedServer(gateway.serve) as server:
        events = read_events(kind, server.url)
    assert [event.id for event in events] == [id for id, _ in gateway.log]
    lines = [json.loads(bytes.partition(b"data: ")[2]) for _, bytes in gateway.log]
    assert [event.data for event in events] == lines
    assert [event.type for event in events] == [line["type"] for line in lines]


def test_unreliable_gateway_cuts_most_streams() -> None:
    """The test above would prove nothing without cuts."""
    connections = []
    for seed in SEEDS:
        gateway = UnreliableGateway(seed)
        with ScriptedServer(gateway.serve) as server:
            read_events("sync", server.url)
            connections.append(len(server.received))
    assert sum(connections) > 4 * len(SEEDS), connections
    assert sum(count > 1 for count in connections) > 0.7 * len(SEEDS), connections


@both
def test_request_names_what_is_followed(kind: str) -> None:
    end = stream_response([frame(None, "end", run="r", last="9.0", resumable=False)], is_chunked=True)
    with ScriptedServer(lambda _: end) as server:
        assert read_events(kind, server.url) == []
        options = {"level": "steps", "types": ["step", "run_ended"], "task": "a b", "after": "8.1"}
        assert read_events(kind, server.url, "a/b", **options) == []
    first, second = server.received
    assert (first.target, first.headers.get("last-event-id")) == ("/api/v1/runs/r/events?level=decisions", None)
    assert second.path == "/api/v1/runs/a%2Fb/events"
    assert second.target.endswith("?level=steps&types=step%2Crun_ended&task=a+b")
    assert second.headers["last-event-id"] == "8.1"


@both
def test_model_output_has_no_position(kind: str) -> None:
    frames = [
        frame("4.0", "task_added", task="a"),
        frame(None, "delta", task="a", text="The"),
        frame(None, "lagged", last="4.0", waited_ms=1500, dropped_deltas=3),
        frame(None, "future_notice"),
    ]
    end = frame(None, "end", run="r", last="4.0", resumable=True)

    def serve(request: ReceivedRequest) -> bytes:
        rest = frames if "last-event-id" not in request.headers else []
        is_first = len(server.received) == 1
        return stream_response([*rest, *([] if is_first else [end])], is_chunked=True)

    with ScriptedServer(serve) as server:
        events = read_events(kind, server.url, level="live")
    assert [(event.id, event.type) for event in events] == [("4.0", "task_added"), (None, "delta"), (None, "lagged")]
    assert (events[1]["text"], events[1].task, events[1].sequence, events[0].sequence) == ("The", "a", None, 4)
    assert server.received[1].headers["last-event-id"] == "4.0"
    with ScriptedServer(lambda _: stream_response([*frames, end], is_chunked=True)) as server:
        types = [event.type for event in read_events(kind, server.url)]
    assert types == ["task_added", "delta"]


@both
def test_event_that_cannot_be_read_ends_the_stream(kind: str) -> None:
    frames = [frame("1.0", "run_started"), frame(None, "error", run="r", message="entry 2 is damaged")]
    with ScriptedServer(lambda _: stream_response(frames, is_chunked=True)) as server:
        with pytest.raises(StreamError, match="entry 2 is damaged"):
            read_events(kind, server.url)
        assert len(server.received) == 1


@both
def test_events_before_an_error_are_delivered(kind: str) -> None:
    frames = [frame("1.0", "run_started"), frame(None, "error", run="r", message="entry 2 is damaged")]
    events: list[Event] = []

    async def follow(url: str) -> None:
        async with AsyncClient(url, retry=FAST) as client:
            async for event in client.run("r").events():
                events.append(event)

    with ScriptedServer(lambda _: stream_response(frames, is_chunked=True)) as server:
        with pytest.raises(StreamError):
            if kind == "async":
                asyncio.run(follow(server.url))
            else:
                with Client(server.url, retry=FAST) as client:
                    for event in client.run("r").events():
                        events.append(event)
    assert [event.id for event in events] == ["1.0"]


@both
@pytest.mark.parametrize(
    "reply, error",
    [
        (problem(404, "run-not-found"), RunNotFound),
        (problem(400, "invalid-request"), InvalidRequest),
        (response(200, b"<html>", "text/html"), UnexpectedResponse),
        (response(404, b"nothing here", "text/plain"), UnexpectedResponse),
    ],
)
def test_refused_stream_is_not_tried_again(kind: str, reply: bytes, error: type[Exception]) -> None:
    with ScriptedServer(lambda _: reply) as server:
        with pytest.raises(error):
            read_events(kind, server.url)
        assert len(server.received) == 1


@both
def test_stream_without_progress_is_given_up(kind: str) -> None:
    policy = RetryPolicy(first_delay=0.01, max_delay=0.05, stream_time=0.4)
    first = stream_response([b": millrace events\n\n", frame("1.0", "run_started")], is_chunked=True)
    with ScriptedServer(lambda _: first) as server:
        with pytest.raises(GatewayUnreachable, match="after '1.0'"):
            read_events(kind, server.url, retry=policy)
        assert len(server.received) > 3
    with ScriptedServer(lambda _: problem(503, "cluster-unavailable")) as server:
        with pytest.raises(ClusterUnavailable):
            read_events(kind, server.url, retry=policy)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(GatewayUnreachable):
        read_events(kind, url, retry=policy)


@both
def test_slow_reader_does_not_exhaust_the_time_for_failures(kind: str) -> None:
    """A person who answers a question may take longer than the client keeps trying."""
    policy = RetryPolicy(first_delay=0.01, max_delay=0.05, stream_time=0.2)
    end = frame(None, "end", run="r", last="2.0", resumable=False)

    def serve(request: ReceivedRequest) -> bytes:
        is_first = "last-event-id" not in request.headers
        frames = [frame("1.0", "run_started")] if is_first else [frame("2.0", "run_ended"), end]
        return stream_response(frames, is_chunked=True)

    async def follow(url: str) -> list[str | None]:
        ids = []
        async with AsyncClient(url, retry=policy) as client:
            async for event in client.run("r").events():
                await asyncio.sleep(0.4)
                ids.append(event.id)
        return ids

    with ScriptedServer(serve) as server:
        if kind == "async":
            ids = asyncio.run(follow(server.url))
        else:
            ids = []
            with Client(server.url, retry=policy) as client:
                for event in client.run("r").events():
                    time.sleep(0.4)
                    ids.append(event.id)
    assert ids == ["1.0", "2.0"]


@both
def test_silent_connection_is_replaced(kind: str) -> None:
    """A host that vanished does not close its connections; the missing keep-alives reveal it."""
    open_connections: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))
    frames = [frame("1.0", "run_started"), frame("2.0", "run_ended")]
    end = frame(None, "end", run="r", last="2.0", resumable=False)

    def serve() -> None:
        first, _ = listener.accept()
        open_connections.append(first)
        first.recv(65536)
        first.sendall(stream_response(frames[:1], is_chunked=False))
        second, _ = listener.accept()
        with second:
            assert b"last-event-id: 1.0" in second.recv(65536).lower()
            second.sendall(stream_response([frames[1], end], is_chunked=True))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def follow() -> list[str | None]:
        async with AsyncClient(url, stream_timeout=0.3, retry=FAST) as client:
            return [event.id async for event in client.run("r").events()]

    if kind == "async":
        ids = asyncio.run(follow())
    else:
        with Client(url, stream_timeout=0.3, retry=FAST) as client:
            ids = [event.id for event in client.run("r").events()]
    assert ids == ["1.0", "2.0"]
    thread.join(5)
    listener.close()
    open_connections[0].close()


def test_cancelled_read_loses_nothing() -> None:
    frames = [frame(f"{number}.0", "step", number=number) for number in range(1, 6)]
    listener = socket.create_server(("127.0.0.1", 0))
    end = frame(None, "end", run="r", last="5.0", resumable=False)

    def serve() -> None:
        for count in range(6):
            connection, _ = listener.accept()
            request = connection.recv(65536).lower()
            last = int(request.partition(b"last-event-id: ")[2].partition(b".")[0] or b"0")
            rest = frames[last:] if count == 5 else frames[last : last + 1]
            with connection:
                connection.sendall(stream_response([*rest, *([end] if count == 5 else [])], is_chunked=False))
                if count < 5:
                    connection.recv(1)

    threading.Thread(target=serve, daemon=True).start()

    async def follow() -> list[str | None]:
        ids: list[str | None] = []
        async with AsyncClient(f"http://127.0.0.1:{listener.getsockname()[1]}", retry=FAST) as client:
            async with client.run("r").events() as events:
                while True:
                    try:
                        event = await asyncio.wait_for(anext(events), 0.1)
                    except asyncio.TimeoutError:
                        continue
                    except StopAsyncIteration:
                        return ids
                    ids.append(event.id)

    assert asyncio.run(asyncio.wait_for(follow(), 20)) == [f"{number}.0" for number in range(1, 6)]
    listener.close()


def test_stream_that_is_left_early_closes_its_connection() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    ends: list[bool] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(stream_response([frame("1.0", "run_started")], is_chunked=False))
            connection.settimeout(5)
            ends.append(connection.recv(1) == b"")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with Client(f"http://127.0.0.1:{listener.getsockname()[1]}", retry=FAST) as client:
        with client.run("r").events() as events:
            for event in events:
                assert event.id == events.last_id == "1.0"
                break
        assert list(events) == []
        assert events.end is None
        thread.join(5)
    assert ends == [True]
    listener.close()


def test_positions_are_checked_before_a_request() -> None:
    with Client() as client:
        for after in ["", "1.", "x", "-1", "1.2.3"]:
            with pytest.raises(ValueError, match="is no event id"):
                client.run("r").events(after=after)
