"""The pure parts of the worker: messages, orders, journals, waits, results, and schemas of functions."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Literal, TypedDict

import msgpack  # type: ignore[import-untyped]
import pytest

from millrace.worker import (
    Answer,
    Attempt,
    ChildTask,
    LostTask,
    Question,
    Result,
    Source,
    TaskError,
    Worker,
    WorkerError,
)
from millrace.worker._journal import JournalState
from millrace.worker._order import lane_of_run, parse_order
from millrace.worker._result import decode_result, encode_result, result_of
from millrace.worker._settings import read_settings
from millrace.worker._waits import children_of, microseconds, parse_answer, parse_event, parse_lost_task
from millrace.worker._wire import (
    FORMAT,
    BlobRef,
    NewerMessage,
    UnreadableMessage,
    child_id,
    envelope,
    is_forged,
    open_envelope,
    pack,
    parse_headers,
    question_digest,
)


class Place(TypedDict, total=False):
    city: str


ORDER: dict[str, Any] = {
    "run": "r-1",
    "lane": 0,
    "work": {"Task": {"task": "count", "attempt": 2}},
    "mission": "m",
    "objective": "o",
    "capability": "wordcount",
    "parameters": {"text": "one two"},
    "inputs": [
        {
            "task": "before",
            "objective": "b",
            "capability": "echo",
            "worker": "w",
            "summary": "s",
            "at_sequence": 42,
        }
    ],
    "allowance": {"tokens": 300, "model_calls": None},
    "ended_waits": [{"key": "pause", "end": "TimeReached"}],
    "decided": {"sequence": 41, "at": 7},
    "new_field": True,
}


def test_envelopes_are_opened_by_kind_and_format() -> None:
    body = pack({"a": 1})
    assert open_envelope(envelope("entry", body), "entry", {}) == body
    stored = BlobRef("ab", 3)
    assert open_envelope(envelope("entry", stored), "entry", {}) == stored
    text = json.dumps({"v": FORMAT, "t": "entry", "b": {"a": 1}}).encode()
    assert open_envelope(text, "entry", {"Millrace-Encoding": "json"}) == {"a": 1}
    with pytest.raises(NewerMessage, match=f"format {FORMAT + 1};"):
        open_envelope(pack({"v": FORMAT + 1, "t": "order", "b": body}), "order", {})
    with pytest.raises(UnreadableMessage, match="release 0.4.x can finish its runs"):
        open_envelope(pack({"v": FORMAT - 1, "t": "order", "b": body}), "order", {})
    other, empty = pack({"v": FORMAT, "t": "order", "b": body}), pack({"v": FORMAT, "t": "entry"})
    for payload in (b"", b"\xc1", pack([1]), other, empty):
        with pytest.raises(UnreadableMessage):
            open_envelope(payload, "entry", {})


def test_redirected_replies_of_the_server_are_forged() -> None:
    assert is_forged({})
    assert is_forged({"Millrace-Id": "a", "Nats-Stream": "LANE_0"})
    assert not is_forged({"Millrace-Id": "a"})
    assert not is_forged(parse_headers(b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"))


def test_names_and_digests_are_those_of_the_other_workers() -> None:
    # Computed by millrace_protocol and millrace_agent.
    assert child_id("write", 2, "3-0") == "write-2-3-0"
    long = child_id("p" * 64, 1, "0-0")
    assert len(long) == 64 and long.startswith("p" * 47 + "-")
    assert lane_of_run("r-1", 1) == 0 and {lane_of_run(f"r-{number}", 4) for number in range(99)} == {0, 1, 2, 3}
    assert question_digest("input", "Which?", "", "") != question_digest("input", "Which?\n", "", "")


def test_order_is_read_with_its_address() -> None:
    order = parse_order(ORDER)
    assert (order.subject, order.journal) == ("work.wordcount.r-1.count.2", "lane.0.run.r-1.task.count.2")
    assert order.allowance == {"tokens": 300} and order.ended_waits == {"pause": "TimeReached"}
    assert order.inputs[0].at_sequence == 42 and order.decided == (41, 7)
    order.check_address("work.wordcount.r-1.count.2", 1)
    with pytest.raises(UnreadableMessage, match="must be"):
        order.check_address("work.wordcount.r-2.count.2", 1)
    with pytest.raises(UnreadableMessage, match="is in lane"):
        parse_order({**ORDER, "lane": 9}).check_address("work.wordcount.r-1.count.2", 4)
    changes: list[dict[str, Any]] = [{"work": {"Planning": {}}}, {"run": "a.b"}, {"inputs": [{}]}, {"parameters": 3}]
    for change in changes:
        with pytest.raises(UnreadableMessage):
            parse_order({**ORDER, **change})
    assert parse_order({**ORDER, "fork": {"Inline": b""}}).unsupported
    assert parse_order({**ORDER, "overrides": {"tools": []}}).unsupported
    assert not parse_order({**ORDER, "overrides": {"model": "m"}}).unsupported


def fold(*entries: dict[str, Any], ended: tuple[str, ...] = ()) -> JournalState:
    state = JournalState(ended)
    for entry in entries:
        state.add(entry)
    return state


CLAIM = {"Claimed": {"worker": "w", "claim": 1}}
RELEASE = {"Released": {"worker": "w", "why": "full"}}


def step(name: str) -> dict[str, Any]:
    return {"Step": {"number": 1, "name": name, "value": {"Inline": b"1"}}}


def parked(*keys: str) -> dict[str, Any]:
    return {"Parked": {"worker": "w", "waits": [{"key": key, "condition": {"Until": 0}} for key in keys]}}


def test_journal_counts_claims_since_the_last_progress() -> None:
    assert fold(CLAIM, CLAIM, CLAIM).claims_without_progress == 3
    assert fold(CLAIM, CLAIM, step("a"), CLAIM).claims_without_progress == 1
    released = fold(CLAIM, RELEASE, CLAIM, RELEASE, CLAIM)
    assert (released.claims, released.claims_without_progress, released.releases) == (3, 1, 2)
    assert fold(CLAIM, {"Note": {"text": "x"}}, {"Unknown": {}}, CLAIM).claims_without_progress == 2
    assert fold(CLAIM, step("a"), step("b")).recorded == fold(step("a"), CLAIM, step("b")).recorded


def test_parked_journal_waits_for_all_of_its_waits() -> None:
    assert fold(CLAIM, parked("a", "b"), ended=("a",)).is_parked
    assert not fold(CLAIM, parked("a", "b"), ended=("b", "a")).is_parked
    assert not fold(CLAIM, parked("a"), CLAIM).is_parked
    assert fold(CLAIM, parked("a")).claimant is None and fold(CLAIM, step("s")).claimant == "w"
    assert fold(CLAIM, {"Outcome": {"worker": "w", "outcome": {}}}).is_done


def test_questions_have_the_form_of_the_wire() -> None:
    asked = Question("Which region?", ["north", "south"], to="ops", expires=timedelta(hours=1)).to_wire()
    assert asked["subject"] == {"Input": {"options": ["north", "south"]}}
    assert asked["expiry"] == {"after": 3600, "action": "reject"} and asked["decisions"] == ["answer", "decline"]
    call = Question("Deploys.", action="deploy", arguments={"version": 3}).to_wire()
    assert call["subject"] == {"Approval": {"tool": "deploy", "arguments": '{"version":3}'}}
    assert call["digest"] == question_digest("call", "deploy", '{"version":3}')
    for wrong in (
        Question(" "),
        Question("a", ["x"] * 21),
        Question("a", on_expiry="ask_again"),
        Question("a", expires=5, on_expiry="escalate"),
        Question("a", action=""),
    ):
        with pytest.raises(TaskError) as error:
            wrong.to_wire()
        assert error.value.kind == "panic"
    long = Question("", action="write", arguments={"content": "ä" * 20_000}).to_wire()["subject"]["Approval"]
    assert len(long["arguments"].encode()) <= 16_000 and long["arguments"].endswith("…")


def test_ends_of_waits_are_read() -> None:
    def answered(answer: Any) -> Answer:
        return parse_answer({"Answered": {"by": "ann", "answer": answer}})

    assert answered({"Answer": {"value": '"eu"'}}) == Answer("answer", "ann", value="eu")
    assert answered("Approve").is_approved and answered({"Edit": {"arguments": '{"v":4}'}}).value == {"v": 4}
    assert not answered({"Reject": {"message": "no"}}).is_approved and answered("Decline").kind == "decline"
    event = parse_event("built", {"Signalled": {"by": "ci", "data": "[1]"}})
    assert event is not None and (event.by, event.data) == ("ci", [1])
    assert parse_event("built", "Expired") is None
    now = datetime(2026, 11, 24, tzinfo=timezone.utc)
    assert microseconds(1.5, now) - microseconds(now, now) == 1_500_000
    ended = [{"task": "a", "end": {"Failed": {"message": "x", "produced": "half"}}}]
    assert parse_lost_task("a", ended) == LostTask("a", "failed", "x", "half")
    assert parse_lost_task("a", [{"task": "a", "end": {"TimedOut": {"message": "late"}}}]).state == "timed_out"
    assert parse_lost_task("b", ended).state == "unknown"


def test_delegated_tasks_share_the_allowance() -> None:
    tasks = [ChildTask("echo", "one"), ChildTask("echo", "two", {"a": 1}, budget={"tokens": 20})]
    children = children_of("t", 1, "k", tasks, {"tokens": 300})
    assert [child["id"] for child in children] == ["t-1-k-0", "t-1-k-1"]
    assert [child["budget"]["tokens"] for child in children] == [100, 20]
    with pytest.raises(TaskError, match="1 to 32"):
        children_of("t", 1, "k", [], {})


def test_returned_values_become_results() -> None:
    assert result_of("# Title\ntext").short_text == "Title"
    data = result_of({"words": (1, 2)})
    assert data.data == {"words": [1, 2]} and data.short_text == '{"words": [1, 2]}' and data.is_detailed
    assert not result_of(0).is_empty and result_of("").is_empty
    for wrong in (None, object(), {"a": float("nan")}, Result(data={1, 2})):
        with pytest.raises(TaskError) as error:
            result_of(wrong)
        assert error.value.kind == "panic"
    result = Result("x [S1]", sources=[Source("S1", "T", "t.txt")], data={"big": 2**70}, usage={"model_calls": 1})
    assert decode_result(encode_result(result)) == Result(**{**vars(result), "summary": "x [S1]", "quotations": []})
    assert decode_result(msgpack.packb({"output": "o", "answered": True})).output == "o"


def test_signature_gives_the_schema_of_the_parameters() -> None:
    worker = Worker("nats://127.0.0.1:1")

    @worker.capability("search")
    async def search(
        attempt: Attempt,
        query: Annotated[str, "what to search for"],
        limit: int = 10,
        kind: Literal["web", "news"] | None = None,
        places: list[Place] = [],  # noqa: B006
        weights: dict[str, float] = {},  # noqa: B006
    ) -> str:
        """Searches."""
        return query

    capability = worker._capabilities["search"]
    assert capability.description == "Searches." and capability.is_async
    assert capability.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what to search for"},
            "limit": {"type": "integer", "default": 10},
            "kind": {"anyOf": [{"enum": ["web", "news"]}, {"type": "null"}], "default": None},
            "places": {"type": "array", "items": {"type": "object", "properties": {"city": {"type": "string"}}}},
            "weights": {"type": "object", "additionalProperties": {"type": "number"}},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    with pytest.raises(TaskError) as error:
        capability.bind(None, {"limit": 3})
    assert error.value.kind == "invalid_task" and "query" in error.value.message


def test_wrong_definitions_are_refused() -> None:
    worker = Worker("nats://127.0.0.1:1")

    def no_attempt() -> str:
        """Text."""
        return ""

    def no_docstring(attempt: Any) -> str:
        return ""

    def unknown(attempt: Any, value: complex) -> str:
        """Text."""
        return ""

    for name, function, mistake in [
        ("a b", no_docstring, "no name of a capability"),
        ("critic", no_docstring, "no name of a capability"),
        ("a", no_attempt, "the attempt as its first parameter"),
        ("a", no_docstring, "needs a description"),
        ("a", unknown, "a.value: no JSON Schema"),
    ]:
        define: Any = worker.capability(name)
        with pytest.raises(WorkerError, match=mistake):
            define(function)
    worker.capability("a", "Text.")(no_docstring)
    with pytest.raises(WorkerError, match="defined twice"):
        worker.capability("a", "Text.")(no_docstring)
    with pytest.raises(WorkerError, match="no id of a worker"):
        Worker(id="a.b")


def test_connection_follows_from_the_environment(tmp_path: Any) -> None:
    assert read_settings(None, {"XDG_DATA_HOME": str(tmp_path)}).servers == ["nats://127.0.0.1:4222"]
    (tmp_path / "cluster.json").write_text(json.dumps({"url": "nats://h:1", "user": "u", "password": "p"}))
    local = read_settings(None, {"MILLRACE_DATA": str(tmp_path)})
    assert (local.servers, local.options) == (["nats://h:1"], {"user": "u", "password": "p"})
    named = read_settings(None, {"MILLRACE_NATS_URL": "nats://a, nats://b", "MILLRACE_NATS_USER": "x"})
    assert named.servers == ["nats://a", "nats://b"] and named.options == {"user": "x", "password": ""}
    seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    (tmp_path / "seed").write_text(f"# seed\n{seed}\n")
    nkey = read_settings("nats://a", {"MILLRACE_NATS_NKEY": str(tmp_path / "seed")}).options
    assert nkey["nkeys_seed_str"] == seed and nkey["inbox_prefix"].startswith("_INBOX.U")
    with pytest.raises(WorkerError, match="no seed"):
        read_settings("nats://a", {"MILLRACE_NATS_CREDS": str(tmp_path / "cluster.json")})
    with pytest.raises(WorkerError, match="belong together"):
        read_settings("nats://a", {"MILLRACE_NATS_CERT": "x"})
