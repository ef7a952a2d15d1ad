"""Requests that are repeated, and errors."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients import FAST, both, call
from server import ReceivedRequest, Reply, ScriptedServer, problem, response

from millrace import Client, GatewayUnreachable, ProblemError, RetryPolicy, WaitTimeout, answer_body, errors

SUBMITTED = response(201, {"type": "run_submitted", "run": "r-1", "sequence": 7})
APPLIED = response(200, {"type": "command_applied", "run": "r", "summary": "", "events": [], "sequence": 9})
VERSION = {"type": "version", "version": "1", "api": "v1"}


def always(reply: Reply | bytes) -> Callable[[ReceivedRequest], Reply | bytes]:
    return lambda _: reply


class Failures:
    """Fails a number of times before each success, in the ways that may pass."""

    def __init__(self, success: bytes, count: int = 4) -> None:
        self.success = success
        self.count = count
        self.seen = 0

    def __call__(self, _: ReceivedRequest) -> Reply | bytes:
        self.seen += 1
        if self.seen > self.count:
            return self.success
        replies: list[Reply | bytes] = [
            Reply(b""),
            Reply(self.success, cut=len(self.success) - 3),
            problem(503, "cluster-unavailable"),
            Reply(self.success, cut=20, is_reset=True),
        ]
        return replies[self.seen % 4]


@both
def test_reads_are_repeated(kind: str) -> None:
    with ScriptedServer(Failures(response(200, VERSION))) as server:
        assert call(kind, server.url, "version") == VERSION
        assert len(server.received) == 5


@both
def test_repeated_submission_has_one_key(kind: str, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Notes")
    for documents in [[], [tmp_path / "notes.md"]]:
        with ScriptedServer(Failures(SUBMITTED)) as server:
            run = call(kind, server.url, "submit", "Say it", documents=documents)
        assert (run.id, run.sequence) == ("r-1", 7)
        keys = [request.headers["idempotency-key"] for request in server.received]
        assert len(keys) == 5 and len(set(keys)) == 1 and len(keys[0]) >= 32
        with ScriptedServer(lambda _: SUBMITTED) as server:
            call(kind, server.url, "submit", "Say it", documents=documents)
        assert server.received[0].headers["idempotency-key"] != keys[0], "another submission has another key"


@both
def test_repeated_command_has_one_key(kind: str) -> None:
    with ScriptedServer(Failures(APPLIED)) as server:
        assert call(kind, server.url, "run.cancel", "r", "too late")["sequence"] == 9
    assert len({request.headers["idempotency-key"] for request in server.received}) == 1
    assert [request.json() for request in server.received] == [{"reason": "too late"}] * 5
    with ScriptedServer(lambda _: APPLIED) as server:
        call(kind, server.url, "run.pause", "r", idempotency_key="mine", wait="accepted", timeout=3)
    assert server.received[0].headers["idempotency-key"] == "mine"
    assert server.received[0].target == "/api/v1/runs/r/pause?wait=accepted&timeout=3"


@both
def test_request_without_a_key_is_sent_once(kind: str) -> None:
    failures: list[Reply | bytes] = [Reply(b""), problem(503, "cluster-unavailable")]
    question = {"id": "r/a/1/1", "status": "open", "text": "?"}
    for failure in failures:
        with ScriptedServer(always(failure)) as server:
            with pytest.raises((GatewayUnreachable, errors.ClusterUnavailable)):
                call(kind, server.url, "answer_many", [(question["id"], answer_body(approve=True))])
            assert len(server.received) == 1
        with ScriptedServer(always(failure)) as server:
            with pytest.raises((GatewayUnreachable, errors.ClusterUnavailable)):
                call(kind, server.url, "set_limit", "openai:gpt", requests=5)
            assert len(server.received) == 1


@both
def test_repetition_ends(kind: str) -> None:
    policy = RetryPolicy(first_delay=0.01, max_delay=0.05, request_time=0.3)
    with ScriptedServer(lambda _: problem(503, "cluster-unavailable", "NATS is away")) as server:
        with pytest.raises(errors.ClusterUnavailable, match="NATS is away"):
            call(kind, server.url, "version", retry=policy)
        assert 3 < len(server.received) < 40
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(GatewayUnreachable, match="GET http://127.0.0.1:.*/api/v1/version"):
        call(kind, url, "version", retry=policy)


def test_delays_grow_and_obey_the_server() -> None:
    policy = RetryPolicy(first_delay=1.0, max_delay=8.0)
    for failures, longest in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0), (5000, 8.0)]:
        delays = [policy.delay(failures, random.Random(seed)) for seed in range(50)]
        assert longest / 2 <= min(delays) < max(delays) <= longest
    with ScriptedServer(lambda _: problem(503, "cluster-unavailable", retry_after="20")) as server:
        with Client(server.url, retry=RetryPolicy(first_delay=0.001, request_time=5)) as client:
            with pytest.raises(errors.ClusterUnavailable):
                client.version()
        assert len(server.received) == 1, "the time would end before the server wants the repetition"


@both
@pytest.mark.parametrize("kind_of_problem, error", list(errors.CLASSES.items()))
def test_problems_are_classes(kind: str, kind_of_problem: str, error: type[ProblemError]) -> None:
    mistakes = [{"pointer": "plan.tasks", "message": "m"}]
    body = {"type": kind_of_problem, "title": "t", "status": 409, "detail": "d", "errors": mistakes}
    reply = response(409, body, "application/problem+json; charset=utf-8")
    with ScriptedServer(lambda _: reply) as server:
        with pytest.raises(error) as raised:
            call(kind, server.url, "run.pause", "r")
    assert type(raised.value) is error
    assert (raised.value.status, raised.value.detail, raised.value.errors) == (409, "d", mistakes)
    assert str(raised.value) == "d"


@both
def test_other_errors_are_told_apart(kind: str) -> None:
    with ScriptedServer(lambda _: problem(418, "of-the-future", "d")) as server:
        with pytest.raises(ProblemError, match="d") as raised:
            call(kind, server.url, "version")
    assert type(raised.value) is ProblemError
    for reply in [response(500, b"<html>", "text/html"), response(302, b"", location="/login")]:
        with ScriptedServer(always(reply)) as server:
            with pytest.raises(errors.UnexpectedResponse):
                call(kind, server.url, "version")


def test_refusals_have_one_base() -> None:
    for error in [errors.CommandRefused, errors.AnswerRefused, errors.QuestionClosed, errors.RunNotEnded]:
        assert issubclass(error, errors.Refused)


@both
def test_wait_continues_until_the_end(kind: str) -> None:
    targets: list[str] = []

    def serve(request: ReceivedRequest) -> bytes:
        targets.append(request.target)
        match len(targets):
            case 1:
                return problem(503, "cluster-unavailable")
            case 2:
                return response(202, {"state": "running"})
        return response(200, {"state": "completed"})

    with ScriptedServer(serve) as server:
        assert call(kind, server.url, "run.wait", "r")["state"] == "completed"
    assert targets == ["/api/v1/runs/r/wait?timeout=30"] * 3


@both
def test_wait_has_an_end(kind: str) -> None:
    with ScriptedServer(lambda _: response(202, {"state": "running"})) as server:
        with pytest.raises(WaitTimeout, match="run r has not ended after 0.2 s") as raised:
            call(kind, server.url, "run.wait", "r", 0.2)
        assert isinstance(raised.value, TimeoutError)
        assert raised.value.state["state"] == "running"
        with pytest.raises(WaitTimeout):
            call(kind, server.url, "run.wait", "r", timeout=0)
        assert server.received[-1].target.endswith("timeout=0")


@both
def test_lists_are_read_part_by_part(kind: str) -> None:
    def serve(request: ReceivedRequest) -> bytes:
        start = int(request.target.partition("cursor=")[2] or 0)
        runs = [{"run": f"r{number}"} for number in range(start, min(start + 3, 8))]
        return response(200, {"runs": runs, "next": str(start + 3) if start + 3 < 8 else ""})

    with ScriptedServer(serve) as server:
        runs = call(kind, server.url, "runs", state=["running", "paused"], since="2h")
        assert [line["run"] for line in runs] == [f"r{number}" for number in range(8)]
        assert [request.target.partition("?")[2] for request in server.received] == [
            "state=running%2Cpaused&since=2h",
            "state=running%2Cpaused&since=2h&cursor=3",
            "state=running%2Cpaused&since=2h&cursor=6",
        ]
        for limit, parts in [(0, 0), (2, 1), (3, 1), (4, 2), (100, 3)]:
            server.received.clear()
            assert len(call(kind, server.url, "runs", limit=limit)) == min(limit, 8)
            assert len(server.received) == parts, limit


def test_documents_are_files_folders_and_names_with_content(tmp_path: Path) -> None:
    folder = tmp_path / "contracts"
    (folder / "old").mkdir(parents=True)
    (folder / ".git").mkdir()
    for name in ["b.md", "old/a.md", ".hidden", ".git/config"]:
        (folder / name).write_text(name)
    documents: list[Any] = [
        str(folder / "b.md"),
        folder,
        ('q "1"/ä.txt', b"\x00\r\n"),
        {"path": "stored.pdf", "sha256": "ab"},
    ]
    with ScriptedServer(lambda _: SUBMITTED) as server:
        call("sync", server.url, "submit", "o", documents=documents, after=["r-0"], budget={"tokens": "2k"})
    body = server.received[0].body
    head = b'Content-Disposition: form-data; name="%s"'
    assert body.count(head % b"documents") == 4
    for name in ["b.md", "old/a.md", "q %221%22/ä.txt"]:
        assert f'name="documents"; filename="{name}"'.encode() in body
    assert b"hidden" not in body and b"config" not in body
    run = body.partition(head % b"run")[2].partition(b"\r\n\r\n")[2].partition(b"\r\n--")[0]
    assert b'"documents": [{"path": "stored.pdf", "sha256": "ab"}]' in run
    assert b'"after": ["r-0"], ' in run and b'"budget": {"tokens": "2k"}' in run
    with pytest.raises(TypeError, match="documents is a list"), Client() as client:
        client.submit("o", documents="notes.md")


def test_plans_are_objects_yaml_and_files(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("tasks: []")
    plan = {"tasks": [{"id": "a"}]}
    for plan_argument, plan_in_body in [(plan, plan), ("tasks: []", "tasks: []"), (file, "tasks: []")]:
        with ScriptedServer(lambda _: SUBMITTED) as server:
            call("sync", server.url, "submit", plan=plan_argument)
        assert server.received[0].json() == {"plan": plan_in_body}


def test_answers_have_one_kind() -> None:
    assert answer_body(approve=True) == {"answer": "approve"}
    assert answer_body(value=None) == {"answer": "answer", "value": None}
    assert answer_body(edit={"a": 1}, scope="this_tool_in_run") == {
        "answer": "edit",
        "value": {"a": 1},
        "scope": "this_tool_in_run",
    }
    assert answer_body(reject="no") == {"answer": "reject", "text": "no"}
    assert answer_body(respond="r") == {"answer": "respond", "text": "r"}
    assert answer_body(fail="f") == {"answer": "fail", "text": "f"}
    assert answer_body(decline=True) == {"answer": "decline"}
    assert answer_body(pass_result=True) == {"answer": "pass"}
    with pytest.raises(ValueError, match="not 0"):
        answer_body()
    with pytest.raises(ValueError, match="not 2"):
        answer_body(approve=True, reject="no")


@both
def test_large_batches_are_split(kind: str) -> None:
    def serve(request: ReceivedRequest) -> bytes:
        lines = [{"id": item["question"], "outcome": "answered"} for item in request.json()["answers"]]
        return response(200, {"outcomes": lines})

    with ScriptedServer(serve) as server:
        answers = [(f"r/a/1/{number}", answer_body(approve=True)) for number in range(2500)]
        outcomes = call(kind, server.url, "answer_many", answers)
        assert [line["id"] for line in outcomes] == [id for id, _ in answers]
        assert [len(request.json()["answers"]) for request in server.received] == [1000, 1000, 500]


def test_urls_have_several_forms() -> None:
    with ScriptedServer(lambda _: response(200, VERSION)) as server:
        for url in [server.url, server.url + "/", server.url + "/api/v1", server.url + "/api/v1/"]:
            assert call("sync", url, "version", retry=FAST) == VERSION
        assert {request.target for request in server.received} == {"/api/v1/version"}


def test_proxies_of_the_environment_are_not_used_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with ScriptedServer(lambda _: response(200, VERSION)) as server:
        assert call("sync", server.url, "version") == VERSION
