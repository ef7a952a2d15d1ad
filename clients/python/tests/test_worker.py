"""Workers in Python with a real cluster."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from cluster import Cluster, Gateway

from millrace import Client, Run
from millrace.errors import InvalidRun
from millrace.worker import (
    Attempt,
    AttemptInterrupted,
    ChildTask,
    Question,
    Quotation,
    Result,
    Source,
    SyncAttempt,
    TaskError,
    Worker,
    WorkerError,
    WorkerFault,
)
from millrace.worker import _cluster
from millrace.worker._settings import read_settings
from millrace.worker._wire import FORMAT, envelope, pack

PROJECT = Path(__file__).resolve().parent.parent
PATIENCE = 20


@contextmanager
def serving(cluster: Cluster, worker: Worker) -> Iterator[threading.Thread]:
    """Serves in a thread, and stops the worker at the end."""
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            asyncio.run(worker.serve())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive() and failures == []


def wait_until(what: str, check: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (value := check()):
        assert time.monotonic() < deadline, f"there is no {what}"
        time.sleep(0.02)
    return value


@pytest.fixture
def join(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Worker]:
    """Makes workers of the cluster."""
    for name in list(os.environ):
        if name.startswith("MILLRACE_NATS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MILLRACE_DATA", str(cluster.folder / "data"))
    return Worker


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    with Client(gateway.url) as instance:
        yield instance


def submit(client: Client, capability: str, **parameters: Any) -> Run:
    task = {"id": "t", "objective": "do it", "capability": capability, "parameters": parameters, "final": True}
    task["limits"] = {"max_attempts": 1}
    return client.submit("do it", plan={"tasks": [task]})


def result_of(client: Client, capability: str, **parameters: Any) -> Any:
    run = submit(client, capability, **parameters)
    state = run.wait(PATIENCE)
    assert state["state"] == "completed", state
    return run.result()


def error_of(client: Client, capability: str, **parameters: Any) -> str:
    run = submit(client, capability, **parameters)
    return json.dumps([event.data for event in run.events() if event.type.startswith("attempt_")])


def steps_of(run: Run) -> list[str]:
    return [event["name"] for event in run.events("steps", types=["step"]) if event["type"] == "step"]


def test_functions_become_capabilities(cluster: Cluster, client: Client, join: Callable[..., Worker]) -> None:
    worker, calls = join(slots=2), []

    @worker.capability("py-async", "Counts words.", version="3")
    async def count(attempt: Attempt, text: str) -> dict[str, Any]:
        async def work() -> int:
            calls.append("count")
            return len(text.split())

        words = await attempt.step("count", work)
        lengths = await attempt.step_all({f"len.{word}": functools.partial(len, word) for word in text.split()})
        await attempt.note(f"counted {words} words")
        return {"words": words, "letters": sum(lengths.values())}

    @worker.capability("py-sync")
    def shout(attempt: SyncAttempt, text: str = "a") -> Result:
        """Writes in capitals."""
        assert threading.current_thread().name == "millrace-py-sync"
        loud = attempt.step("loud", text.upper)
        both = attempt.step_all({"one": lambda: 1, "two": lambda: 2})
        attempt.note("shouted")
        sources = [Source("S1", "A text", "text.txt")]
        return Result(f"{loud} [S1]", notes="loud", sources=sources, quotations=[Quotation("S1", "a", 1, 1)], data=both)

    with serving(cluster, worker):
        result = result_of(client, "py-async", text="one two")
        assert result["data"] == {"words": 2, "letters": 6} and calls == ["count"]
        result = result_of(client, "py-sync", text="ä")
        assert (result["output"], result["data"], result["notes"]) == ("Ä [S1]", {"one": 1, "two": 2}, "loud")
        assert result["sources"][0]["location"] == "text.txt" and result["quotations"][0]["text"] == "a"
        described = {one["name"]: one for one in client.capabilities()}
        assert described["py-sync"]["description"] == "Writes in capitals."
        assert [one["slots"]["total"] for one in client.workers() if one["id"] == worker.id] == [4]
        with pytest.raises(InvalidRun, match="'txet' is unknown"):
            submit(client, "py-async", txet="one")
    wait_until("end of the heartbeat", lambda: all(one["id"] != worker.id for one in client.workers()))


def test_attempts_wait_without_a_worker(cluster: Cluster, client: Client, join: Callable[..., Worker]) -> None:
    worker, calls = join(slots=1), []

    @worker.capability("py-waits", "Waits for everything.")
    async def waits(attempt: Attempt, delegate: bool = True) -> dict[str, Any]:
        await attempt.step("begin", lambda: calls.append("begin"))
        await attempt.sleep("pause", 0.05)
        answers = await attempt.ask_all({"region": Question("Which?", ["eu", "us"]), "name": Question("Who?")})
        approved = await attempt.approve("go", "deploy", {"version": 3}, "Deploys.", {"type": "object"})
        event = await attempt.wait_for_event("built", "built")
        late = await attempt.wait_for_event("late", "never", 0.05)
        tasks = [ChildTask("py-child", "Count.", {"number": number}) for number in range(3)]
        ends = await attempt.delegate_all("children", tasks)
        await attempt.step("end", lambda: calls.append("end"))
        assert event is not None and late is None and approved.is_approved
        return {
            "answers": [answers["region"].value, answers["name"].kind, answers["name"].by],
            "approved": [approved.kind, approved.value],
            "event": event.data,
            "children": [end.data if isinstance(end, Result) else end.message for end in ends],
            "claims": attempt.claim_number,
        }

    @worker.capability("py-child", "A child.")
    def child(attempt: SyncAttempt, number: int) -> int:
        if number == 2:
            raise TaskError("two is too many", "invalid_task")
        return number * 10

    with serving(cluster, worker):
        run = submit(client, "py-waits")
        first = wait_until("two questions", lambda: questions if len(questions := run.questions()) == 2 else None)
        wait_until("a free slot", lambda: busy_slots(client, worker) == 0)
        for question in first:
            if question.text == "Which?":
                question.answer(value="eu")
            else:
                question.answer(decline=True)
        approval = wait_until("an approval", lambda: run.questions())[0]
        assert approval.text == "Deploys."
        approval.answer(edit={"version": 4})
        wait_until("a wait for the event", lambda: len([1 for one in run.get()["tasks"] if one["state"] == "waiting"]))
        run.signal("built", {"commit": "abc"})
        assert run.wait(PATIENCE)["state"] == "completed"
        data = run.result()["data"]
        assert data["answers"][:2] == ["eu", "decline"] and data["approved"] == ["edit", {"version": 4}]
        assert data["event"] == {"commit": "abc"} and data["children"][:2] == [0, 10]
        assert "two is too many" in data["children"][2] and data["claims"] >= 5
        assert calls == ["begin", "end"]
        assert [name for name in steps_of(run) if name in ("begin", "pause", "go", "built", "late", "end")] == [
            "begin",
            "pause",
            "go",
            "built",
            "late",
            "end",
        ]


def busy_slots(client: Client, worker: Worker) -> int | None:
    lines = [one for one in client.workers() if one["id"] == worker.id]
    return lines[0]["slots"]["busy"] if lines else None


def test_errors_have_their_kinds(cluster: Cluster, client: Client, join: Callable[..., Worker]) -> None:
    worker = join()
    faults: list[int] = []

    @worker.capability("py-errors", "Fails.")
    async def fail(attempt: Attempt, how: str) -> Any:
        if how == "kind":
            raise TaskError("no price", "limit", limit="allowance", usage={"model_calls": 2}, produced="half")
        if how == "exception":
            raise ValueError("broken")
        if how == "none":
            return None
        if how == "step":
            await attempt.step("bad", lambda: object())
        if how == "overlap":
            await asyncio.gather(*(attempt.step(name, asyncio.sleep, 0.2) for name in ("a", "b")))
        if how == "swallow":
            try:
                await attempt.sleep("a", 0.05)
            except Exception:
                return "swallowed"
        if how == "fault" and not faults:
            faults.append(attempt.claim_number)
            raise WorkerFault("the disk is full")
        return f"claim {attempt.claim_number}"

    with serving(cluster, worker):
        for how, parts in {
            "kind": ["limit", "no price"],
            "exception": ["other", "ValueError: broken"],
            "none": ["panic", "returned None"],
            "step": ["panic", "can't be written as JSON"],
            "overlap": ["panic", "use step_all"],
        }.items():
            text = error_of(client, "py-errors", how=how)
            assert all(part in text for part in parts), (how, text)
        assert result_of(client, "py-errors", how="swallow")["output"] == "claim 2"
        assert result_of(client, "py-errors", how="fault")["output"] == "claim 2" and faults == [1]


def test_large_values_documents_and_inputs(cluster: Cluster, client: Client, join: Callable[..., Worker]) -> None:
    worker = join()
    text = "x" * 700_000

    @worker.capability("py-large", "Has large values.")
    async def large(attempt: Attempt) -> Result:
        value = await attempt.step("large", lambda: text)
        assert await attempt.step("again", lambda: len(value)) == len(text)
        await attempt.sleep("pause", 0.05)
        documents = await attempt.documents()
        contents = [(await attempt.read_document(one)).decode() for one in documents]
        return Result(value, data={"documents": [[one.path for one in documents], contents]})

    @worker.capability("py-reader", "Reads a result.")
    def read(attempt: SyncAttempt) -> dict[str, Any]:
        before = attempt.read_input(attempt.order.inputs[0])
        return {"length": len(before.output), **before.data}

    with serving(cluster, worker):
        tasks = [
            {"id": "a", "objective": "a", "capability": "py-large"},
            {"id": "b", "objective": "b", "capability": "py-reader", "depends_on": ["a"], "final": True},
        ]
        run = client.submit("large", plan={"tasks": tasks}, documents=[("notes/ä.md", "# Ä".encode())])
        assert run.wait(PATIENCE)["state"] == "completed"
        assert run.result()["data"] == {"length": len(text), "documents": [["notes/ä.md"], ["# Ä"]]}


def test_cancelled_work_stops(cluster: Cluster, client: Client, join: Callable[..., Worker]) -> None:
    worker, seen = join(), []

    @worker.capability("py-coroutine", "Waits for ever.")
    async def coroutine(attempt: Attempt) -> str:
        try:
            await attempt.note("begun")
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            seen.append("coroutine")
            raise
        return "late"

    @worker.capability("py-thread", "Waits for ever.")
    def thread(attempt: SyncAttempt) -> str:
        attempt.note("begun")
        wait_until("cancellation", lambda: attempt.is_cancelled)
        try:
            attempt.step("late", lambda: seen.append("ran"))
        except AttemptInterrupted:
            seen.append("thread")
            raise
        return "late"

    with serving(cluster, worker):
        for name in ("py-coroutine", "py-thread"):
            run = submit(client, name)
            for event in run.events("steps"):
                if event.type == "step" and event["type"] == "note":
                    break
            run.cancel("not wanted")
            run.wait(PATIENCE)
        wait_until("two stops", lambda: len(seen) == 2)
    assert seen == ["coroutine", "thread"]


def test_another_worker_continues_when_one_stops(cluster: Cluster, client: Client, join: Callable[..., Worker]) -> None:
    first, second, done = join(grace=0.1), join(), []

    def define(worker: Worker, blocks: bool) -> None:
        @worker.capability("py-long", "Takes long.")
        async def work(attempt: Attempt) -> str:
            await attempt.step("one", lambda: done.append("one"))
            if blocks:
                await asyncio.sleep(PATIENCE)
            await attempt.step("two", lambda: done.append("two"))
            return f"claim {attempt.claim_number}"

    define(first, True)
    define(second, False)
    with serving(cluster, first):
        run = submit(client, "py-long")
        wait_until("a step", lambda: done)
    with serving(cluster, second):
        assert run.wait(PATIENCE)["state"] == "completed"
    assert done == ["one", "two"] and run.result()["output"] == "claim 2"
    entries = [event["type"] for event in run.events("steps", types=["step"])]
    assert "released" in entries


def test_slots_limit_concurrent_attempts(cluster: Cluster, client: Client, join: Callable[..., Worker]) -> None:
    worker, running, most = join(slots=3), [], []

    @worker.capability("py-slots", "Counts.")
    async def work(attempt: Attempt) -> str:
        running.append(1)
        most.append(len(running))
        await asyncio.sleep(0.1)
        running.pop()
        return "done"

    tasks = [{"id": f"t{number}", "objective": "x", "capability": "py-slots"} for number in range(9)]
    with serving(cluster, worker):
        run = client.submit("all", plan={"tasks": tasks})
        assert run.wait(PATIENCE)["state"] == "completed"
    assert max(most) == 3 and len(most) == 9


def test_worker_of_the_page_runs_until_it_is_stopped(cluster: Cluster, client: Client) -> None:
    page = (PROJECT / "README.md").read_text(encoding="utf-8")
    block = next(part for part in page.split("```python\n") if "from millrace.worker" in part).partition("```")[0]
    environment = {**os.environ, "MILLRACE_DATA": str(cluster.folder / "data")}
    process = subprocess.Popen([sys.executable, "-c", block], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_until("the capability", lambda: "word-count" in [one["name"] for one in client.capabilities()])
        assert result_of(client, "word-count", text="one two three")["data"] == {"words": 3}
        process.terminate()
        _, log = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0 and "received SIGTERM; stopping" in log, log


def test_orders_of_newer_releases_stay_in_the_queue(cluster: Cluster, join: Callable[..., Worker]) -> None:
    worker = join()
    started = threading.Event()

    @worker.capability("py-newer", "Is not called.")
    async def work(attempt: Attempt) -> str:
        started.set()
        return "done"

    async def scenario() -> tuple[int, int]:
        settings = read_settings(None, dict(os.environ))
        nc = await nats.connect(settings.servers, **settings.options)
        js = nc.jetstream()

        async def queued(subject: str) -> int:
            info = await js.stream_info("WORK", subjects_filter=subject)
            return len(info.state.subjects or {})

        subjects = ["work.py-newer.r-x.t.1", "work.py-newer.r-x.u.1"]
        payloads = [pack({"v": FORMAT + 1, "t": "order", "b": pack({})}), envelope("order", pack({"run": "r-x"}))]
        for subject, payload in zip(subjects, payloads):
            await js.publish(subject, payload, headers={"Millrace-Id": "a"})
        deadline = time.monotonic() + PATIENCE
        while await queued(subjects[1]):  # An unreadable order is removed.
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        counts = await queued(subjects[0]), await queued(subjects[1])
        await js.purge_stream("WORK", subject="work.py-newer.>")
        await nc.close()
        return counts

    with serving(cluster, worker):
        assert asyncio.run(scenario()) == (1, 0)
    assert not started.is_set()


def test_worker_needs_a_cluster_and_a_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cluster, "CONNECT_TIME", 0.5)
    with pytest.raises(WorkerError, match="no capability"):
        asyncio.run(Worker("nats://127.0.0.1:1").serve())
    worker = Worker("nats://127.0.0.1:1")
    worker.capability("a", "Text.")(lambda attempt: "")
    with pytest.raises(WorkerError, match="can't connect to NATS at nats://127.0.0.1:1"):
        asyncio.run(worker.serve())
