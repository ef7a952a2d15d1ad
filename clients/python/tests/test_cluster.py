"""The clients with a real cluster and real gateways."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients import both, call, read_events
from cluster import Gateway
from server import CuttingProxy

from millrace import AsyncClient, Client, Event, RetryPolicy, WaitTimeout, answer_body, errors

PROJECT = Path(__file__).resolve().parent.parent
LICENCES = PROJECT.parent.parent / "examples" / "licences"
PATIENT = RetryPolicy(first_delay=0.02, max_delay=0.2, request_time=60.0, stream_time=60.0)


def echo(id: str, *, after: list[str] | None = None, final: bool = False, **parameters: Any) -> dict[str, Any]:
    task = {"id": id, "objective": f"say {id}", "capability": "echo", "parameters": parameters}
    return {**task, "depends_on": after or [], "final": final}


def chain(count: int, **parameters: Any) -> dict[str, Any]:
    """Returns a plan of tasks, one after the other."""
    names = [f"t{number}" for number in range(count)]
    tasks = [
        echo(name, after=names[max(0, number - 1) : number], final=number + 1 == count, **parameters)
        for number, name in enumerate(names)
    ]
    return {"tasks": tasks}


def wait_until(what: str, check: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < deadline, f"there is no {what}"
        time.sleep(0.05)


@both
def test_run_is_submitted_followed_and_read(kind: str, gateway: Gateway) -> None:
    documents = [("notes/ä b.md", "# Notes ä".encode()), ('"q".txt', b"quote")]
    run = call(kind, gateway.url, "submit", "say it", plan=chain(2), documents=documents)
    events = read_events(kind, gateway.url, run.id)
    assert [events[0].type, events[-1].type] == ["run_started", "run_ended"]
    assert run.sequence < events[0].sequence == events[0]["sequence"]
    assert events[0]["documents"]["count"] == 2
    assert {event.task for event in events if event.type == "task_completed"} == {"t0", "t1"}
    blob = call(kind, gateway.url, "blob", hashlib.sha256("# Notes ä".encode()).hexdigest())
    assert blob == "# Notes ä".encode()

    state = call(kind, gateway.url, "run.wait", run.id, 60)
    assert (state["state"], state["task_counts"]["completed"]) == ("completed", 2)
    assert call(kind, gateway.url, "run.get", run.id) == state
    assert call(kind, gateway.url, "run.get", run.id, at=events[0].sequence)["state"] == "running"
    result = call(kind, gateway.url, "run.result", run.id)
    assert call(kind, gateway.url, "run.report", run.id).strip() == result["output"].strip()
    assert call(kind, gateway.url, "run.report", run.id, "html").startswith("<!doctype html>")
    assert call(kind, gateway.url, "run.report", run.id, "json") == result
    transcript = call(kind, gateway.url, "run.transcript", run.id, "t0", attempt=1)
    assert transcript["task"]["attempts"][0]["entries"]
    assert call(kind, gateway.url, "run.planner_transcript", run.id)["turns"] == []
    steps = read_events(kind, gateway.url, run.id, level="steps", types=["step"], task="t1")
    assert steps and {(event.type, event.task) for event in steps} == {("step", "t1")}
    assert read_events(kind, gateway.url, run.id, after=events[2].id) == events[3:]
    assert run.id in [line["run"] for line in call(kind, gateway.url, "runs", "completed", limit=1000)]
    labels = {"client": kind, "number": "2"}
    follow_up = call(kind, gateway.url, "submit", "say more", plan=chain(1), after=[run], labels=labels)
    assert call(kind, gateway.url, "run.wait", follow_up.id)["after"][0]["run"] == run.id
    # A supervisor writes the line of a run after the decision.
    selected = {"label": [f"client={kind}", "number"]}
    lines = wait_until("line of the run", lambda: call(kind, gateway.url, "runs", **selected))
    assert [(line["run"], line["labels"]) for line in lines] == [(follow_up.id, labels)]
    assert call(kind, gateway.url, "runs", label="client=other") == []


@both
def test_text_is_verified_with_documents(kind: str, gateway: Gateway) -> None:
    text = "The kiln fires at 1,240 degrees. It was sold in 1987. It is old.\n"
    kiln = ("kiln.md", b"# Kiln\n\nThe kiln fires at 1,240 degrees.\n")
    options: dict[str, Any] = {"models": ["verifier=none"], "idempotency_key": f"verify-{kind}"}
    verified = call(kind, gateway.url, "verify", text, documents=[kiln], timeout=60, **options)
    assert [one["verdict"] for one in verified.statements] == ["supported", "unsupported", "unverified"]
    assert verified.statements[0]["lines"] == [{"source": "kiln.md", "first_line": 3, "last_line": 3}]
    counts = verified.counts
    assert (counts["statements"], counts["by_quotation"], counts["unverified"]) == (3, 1, 1)
    assert verified.output.startswith("The kiln fires at 1,240 degrees. It was sold in 1987.[^v1] It is old.[^v2]")
    assert call(kind, gateway.url, "verify", text, documents=[kiln], **options) == verified
    with pytest.raises(errors.InvalidRun, match="documents"):
        call(kind, gateway.url, "verify", text)
    with pytest.raises(errors.NoDeliverable):
        call(kind, gateway.url, "verify", text, documents=[("blank.md", b" ")])


@both
def test_cluster_is_described(kind: str, gateway: Gateway) -> None:
    assert call(kind, gateway.url, "health")["supervisors"] == 1
    assert call(kind, gateway.url, "version")["type"] == "version"
    assert call(kind, gateway.url, "status")["type"] == "status"
    assert call(kind, gateway.url, "workers")
    assert "echo" in [one["name"] for one in call(kind, gateway.url, "capabilities")]
    call(kind, gateway.url, "set_limit", "openai:some/model", requests=10)
    limits = {limit["name"]: limit["requests"]["limit"] for limit in call(kind, gateway.url, "limits")}
    assert limits == {"openai:some/model": 10}
    call(kind, gateway.url, "clear_limit", "openai:some/model")
    assert call(kind, gateway.url, "limits") == []
    assert call(kind, gateway.url, "openapi")["openapi"].startswith("3.1")


@both
def test_submission_with_a_key_starts_one_run(kind: str, gateway: Gateway) -> None:
    key = f"key-{kind}"
    one = call(kind, gateway.url, "submit", "say it", plan=chain(1), idempotency_key=key)
    two = call(kind, gateway.url, "submit", "say it", plan=chain(1), idempotency_key=key)
    assert one.id == two.id
    with pytest.raises(errors.IdempotencyKeyReused):
        call(kind, gateway.url, "submit", "say more", plan=chain(1), idempotency_key=key)
    with pytest.raises(errors.InvalidRun) as raised:
        call(kind, gateway.url, "submit", "say it", plan={"tasks": [{"id": "a"}]})
    assert raised.value.errors[0]["pointer"] == "plan"
    with pytest.raises(errors.RunNotFound):
        call(kind, gateway.url, "run.get", "no-such-run")


@both
def test_questions_are_answered(kind: str, gateway: Gateway) -> None:
    tasks = [
        echo("approved", approve=True),
        echo("rejected", approve=True),
        echo("asks", ask=["Which region?"], final=True),
    ]
    run = call(kind, gateway.url, "submit", "ask", plan={"tasks": tasks})
    wait_until("three questions", lambda: len(call(kind, gateway.url, "run.questions", run.id)) == 3)

    def listed() -> dict[str, Any]:
        questions = call(kind, gateway.url, "questions")
        return {question.task: question for question in questions if question.run == run.id}

    # The list of all runs follows the log.
    wait_until("three questions in the list of all runs", lambda: len(listed()) == 3)
    open_questions = listed()
    assert (open_questions["asks"].kind, open_questions["asks"].text) == ("input", "Which region?")
    assert open_questions["approved"].tool == "echo_action" and open_questions["approved"].status == "open"

    def answer(question: Any, **answer: Any) -> Any:
        """Answers a question with a client of its own, since that of the list is closed."""
        if kind == "sync":
            with Client(gateway.url) as client:
                return client.question(question.id).answer(**answer)

        async def run() -> Any:
            async with AsyncClient(gateway.url) as client:
                return await (await client.question(question.id)).answer(**answer)

        return asyncio.run(run())

    with pytest.raises(errors.AnswerRefused):
        answer(open_questions["approved"], pass_result=True)
    assert answer(open_questions["approved"], approve=True)["outcome"] == "answered"
    with pytest.raises(errors.QuestionClosed, match="ann"):
        answer(open_questions["approved"], reject="no")
    outcomes = call(
        kind,
        gateway.url,
        "answer_many",
        [
            (open_questions["rejected"], answer_body(reject="too risky")),
            (open_questions["approved"].id, answer_body(approve=True)),
            (f"{run.id}/none/1/1", answer_body(approve=True)),
            (open_questions["asks"], answer_body(value="eu")),
        ],
    )
    assert [line["outcome"] for line in outcomes] == ["answered", "already", "unknown", "answered"]
    call(kind, gateway.url, "run.wait", run.id, 60)
    assert call(kind, gateway.url, "run.questions", run.id) == []
    assert len(call(kind, gateway.url, "run.questions", run.id, history=True)) == 3


@both
def test_runs_are_steered(kind: str, gateway: Gateway) -> None:
    tasks = [echo("waits", await_event="paid"), echo("later", after=["waits"], final=True)]
    run = call(kind, gateway.url, "submit", "wait", plan={"tasks": tasks}).id
    wait_until("attempt that waits", lambda: call(kind, gateway.url, "run.get", run)["task_counts"]["waiting"] == 1)
    with pytest.raises(WaitTimeout) as waited:
        call(kind, gateway.url, "run.wait", run, 0.5)
    assert waited.value.state["state"] == "running"
    with pytest.raises(errors.RunNotEnded):
        call(kind, gateway.url, "run.result", run)
    paused = call(kind, gateway.url, "run.pause", run)
    assert (paused["type"], [event["type"] for event in paused["events"]][-1]) == ("command_applied", "run_paused")
    assert call(kind, gateway.url, "run.get", run, at=paused["sequence"])["state"] == "paused"
    assert call(kind, gateway.url, "run.resume", run, {"tokens": "2k"})["type"] == "command_applied"
    with pytest.raises(errors.Refused, match="planner") as refused:
        call(kind, gateway.url, "run.message", run, "go on")
    assert (refused.value.status, type(refused.value)) == (409, errors.CommandRefused)
    call(kind, gateway.url, "run.add", run, [echo("more", after=["waits"]), echo("extra", after=["waits"])])
    call(kind, gateway.url, "run.edit", run, "more", {"objective": "even more"})
    call(kind, gateway.url, "run.cancel_task", run, "extra", "not needed")
    with pytest.raises(errors.TaskNotFound):
        call(kind, gateway.url, "run.cancel_task", run, "none")
    state = call(kind, gateway.url, "run.get", run)
    tasks_by_id = {task["id"]: (task["objective"], task["state"]) for task in state["tasks"]}
    assert (tasks_by_id["more"], tasks_by_id["extra"][1]) == (("even more", "pending"), "cancelled")
    accepted = call(kind, gateway.url, "run.interrupt", run, wait="accepted")
    assert accepted["type"] == "command_accepted"
    wait_until("interruption", lambda: call(kind, gateway.url, "run.get", run)["state"] == "interrupted")
    call(kind, gateway.url, "run.resume", run)
    call(kind, gateway.url, "run.signal", run, "paid", {"amount": 3})
    assert call(kind, gateway.url, "run.wait", run, 60)["state"] in ("completed", "completed_partial")
    with pytest.raises(errors.Refused, match="has ended"):
        call(kind, gateway.url, "run.cancel", run, "too late")

    failing = {"tasks": [{**echo("a", fail_rate=1.0), "limits": {"max_attempts": 1}}]}
    run = call(kind, gateway.url, "submit", "fail", plan=failing).id
    assert call(kind, gateway.url, "run.wait", run, 60)["state"] == "failed"
    with pytest.raises(errors.NoDeliverable):
        call(kind, gateway.url, "run.report", run)
    changes = {"parameters": {"fail_rate": 0.0}}
    assert call(kind, gateway.url, "run.retry", run, "a", "once more", changes)["type"] == "command_applied"
    assert call(kind, gateway.url, "run.wait", run, 60)["state"] == "completed"


@both
def test_files_are_listed_and_read(kind: str, gateway: Gateway) -> None:
    plan = {"tasks": [{"id": "a", "objective": "count", "capability": "count", "final": True}]}
    run = call(kind, gateway.url, "submit", "count", plan=plan).id
    assert call(kind, gateway.url, "run.wait", run, 60)["state"] == "completed"
    files = call(kind, gateway.url, "run.files", run)
    assert len(files) == 2, files
    for file in files:
        assert call(kind, gateway.url, "run.file", run, file["path"]) == b"three words here"
        assert call(kind, gateway.url, "run.file", run, file["path"].lstrip("/"), version=file["version"])
        assert call(kind, gateway.url, "run.file_versions", run, file["path"]) == [file]
    assert len(call(kind, gateway.url, "run.files", run, "/out/a b")) == 1
    with pytest.raises(errors.FileNotFound):
        call(kind, gateway.url, "run.file", run, "none.txt")


@both
def test_stream_survives_gateways_that_are_killed_and_stopped(kind: str, gateway: Gateway) -> None:
    run = call(kind, gateway.url, "submit", "say it", plan=chain(15, delay_ms=150, steps=3)).id
    ways = {20: signal.SIGKILL, 60: signal.SIGTERM, 90: signal.SIGKILL}
    restarts: list[threading.Thread] = []

    def restart(how: signal.Signals) -> None:
        gateway.stop(how)
        time.sleep(0.2)
        gateway.start()

    def note(event: Event, events: list[Event]) -> None:
        events.append(event)
        if len(events) in ways:
            restarts.append(threading.Thread(target=restart, args=[ways[len(events)]]))
            restarts[-1].start()

    events: list[Event] = []
    if kind == "sync":
        with Client(gateway.url, retry=PATIENT) as client:
            for event in client.run(run).events("steps"):
                note(event, events)
    else:

        async def follow() -> None:
            async with AsyncClient(gateway.url, retry=PATIENT) as client:
                async for event in client.run(run).events("steps"):
                    note(event, events)

        asyncio.run(follow())
    for thread in restarts:
        thread.join()
    assert len(restarts) == 3, len(events)
    assert events == read_events(kind, gateway.url, run, level="steps"), "as on one connection"
    assert len({event.id for event in events}) == len(events)
    assert events[-1].type == "run_ended"


@both
def test_stream_that_is_cut_at_random_bytes_equals_the_log(kind: str, gateway: Gateway) -> None:
    run = call(kind, gateway.url, "submit", "say it", plan=chain(12, steps=3)).id
    call(kind, gateway.url, "run.wait", run, 60)
    whole = read_events(kind, gateway.url, run, level="steps")
    assert len(whole) > 60
    connections = []
    for seed in range(25):
        with CuttingProxy(gateway.port, seed) as proxy:
            assert read_events(kind, proxy.url, run, level="steps") == whole, seed
            connections.append(proxy.connections)
    assert sum(connections) > 4 * len(connections), connections


@both
def test_requests_outlive_a_gateway(kind: str, gateway: Gateway) -> None:
    gateway.stop()
    starter = threading.Timer(0.7, gateway.start)
    starter.start()
    run = call(kind, gateway.url, "submit", f"outlive {kind}", plan=chain(5, delay_ms=300), retry=PATIENT)
    starter.join()

    def restart() -> None:
        gateway.stop(signal.SIGTERM)
        gateway.start()

    stopper = threading.Thread(target=restart)
    stopper.start()
    assert call(kind, gateway.url, "run.wait", run.id, 60, retry=PATIENT)["state"] == "completed"
    stopper.join()
    objectives = [line["objective"] for line in call(kind, gateway.url, "runs")]
    assert objectives.count(f"outlive {kind}") == 1


def test_notebook_submits_streams_answers_and_shows_the_report(gateway: Gateway) -> None:
    command = [sys.executable, str(PROJECT / "examples" / "notebook.py")]
    environment = {**os.environ, "MILLRACE_API": gateway.url}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stdout + process.stderr
    for part in ("plan_question_asked", "run_ended", "## Sources", "completed"):
        assert part in process.stdout, process.stdout


def test_quickstart_leads_to_the_report(gateway: Gateway) -> None:
    command = [sys.executable, str(PROJECT / "examples" / "quickstart.py"), "--url", gateway.url, str(LICENCES)]
    process = subprocess.run(command, input="approve\n", capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "plan_question_asked" in process.stdout and "run_ended" in process.stdout
    assert "## Sources" in process.stdout, process.stdout


def test_examples_of_the_page_run(gateway: Gateway, tmp_path: Path) -> None:
    page = (PROJECT / "README.md").read_text(encoding="utf-8")
    blocks = [part.partition("```")[0] for part in page.split("```python\n")[1:]]
    assert len(blocks) == 4
    worker = blocks.pop()
    assert "from millrace.worker" in worker
    (tmp_path / "licences").mkdir()
    (tmp_path / "licences" / "MIT.txt").write_bytes((LICENCES / "MIT.txt").read_bytes())
    for block in blocks:
        program = block.replace("http://127.0.0.1:7070", gateway.url)
        command = [sys.executable, "-c", program]
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert process.returncode == 0, process.stderr
        assert "run_ended" in process.stdout or "unsupported It may be used for 90 days." in process.stdout
