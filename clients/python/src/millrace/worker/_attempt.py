"""An attempt at a task, as a capability sees it."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, ParamSpec, TypeVar, overload

from ._blobs import BlobMissing, BlobStore, BlobTooLarge
from ._cluster import Cluster, Fault, Fenced
from ._journal import Journal
from ._order import START_EVENT_KEY, Input, Order
from ._result import Result, decode_result
from ._waits import (
    MAX_WAITS,
    Answer,
    ChildTask,
    LostTask,
    Question,
    SignalledEvent,
    Time,
    children_of,
    contract_error,
    event_condition,
    microseconds,
    parse_answer,
    parse_event,
    parse_lost_task,
)
from ._wire import BlobRef, UnreadableMessage, dump_json, open_envelope, parse_blob_value, unpack
from .errors import AttemptInterrupted, TaskError

LOG = logging.getLogger("millrace.worker")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Document:
    """A document of the run."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Parking:
    """The waits with which an attempt parks, and the tasks that it delegates."""

    waits: list[dict[str, Any]]
    children: list[dict[str, Any]]


class Attempt:
    """An attempt at a task.

    A capability must call the same steps and waits in the same order each time: when a worker is lost, or a wait has
    ended, another one calls it again, and gets the recorded values of the steps before.
    """

    def __init__(self, cluster: Cluster, blobs: BlobStore, journal: Journal, order: Order, worker: str) -> None:
        self.order = order
        """The order: the task and everything that it refers to."""
        self.worker = worker
        """The id of this worker."""
        self._cluster = cluster
        self._blobs = blobs
        self._journal = journal
        self._is_busy = False
        self._is_cancelled = False
        self._failure: Fault | Fenced | None = None
        self._parking: Parking | None = None

    @property
    def objective(self) -> str:
        """The objective of the task."""
        return self.order.objective

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the task."""
        return self.order.parameters

    @property
    def claim_number(self) -> int:
        """The number of this claim, from 1. Above 1, an earlier worker was lost, or the attempt was parked."""
        return self._journal.claim_number

    @property
    def is_cancelled(self) -> bool:
        """`True` if the attempt is not wanted any more. Threads must look at it; a coroutine is cancelled."""
        return self._is_cancelled

    @property
    def start_event(self) -> SignalledEvent | None:
        """The event without which the task did not start, if it has one."""
        name = str((self.order.body.get("wait_for_event") or {}).get("name", ""))
        return parse_event(name, self.order.ended_waits.get(START_EVENT_KEY))

    @overload
    async def step(self, name: str, work: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    async def step(self, name: str, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def step(self, name: str, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Does a step once: calls `work(*args, **kwargs)`, and records its value in the journal before it returns it.

        If the journal has the value from an earlier claim, it returns that without a call. The value is one of JSON,
        and is returned as JSON has it: a tuple as a list. An error of `work` is raised, and not recorded.
        """
        with self._one_at_a_time(name):
            recorded = await self._recorded([name])
            if recorded is not None:
                return recorded[1]
            value = work(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
            return await self._record(name, value)

    async def step_all(self, works: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Does steps at the same time, each once, and returns their values by their names.

        Each is recorded as it ends. If one fails, the others are cancelled, and its error is raised.
        """
        with self._one_at_a_time(", ".join(works)):
            values: dict[str, Any] = {}
            while len(values) < len(works):
                recorded = await self._recorded([name for name in works if name not in values])
                if recorded is None:
                    break
                values[recorded[0]] = recorded[1]
            tasks = [
                asyncio.ensure_future(self._run_and_record(name, work))
                for name, work in works.items()
                if name not in values
            ]
            try:
                for name, value in [await task for task in asyncio.as_completed(tasks)]:
                    values[name] = value
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            return {name: values[name] for name in works}

    async def _run_and_record(self, name: str, work: Callable[[], Any]) -> tuple[str, Any]:
        value = work()
        if inspect.isawaitable(value):
            value = await value
        return name, await self._record(name, value)

    async def note(self, text: str) -> None:
        """Writes a progress line. It also counts as activity, for tasks with a silence limit."""
        await self._guard(self._journal.append_note(text))

    async def sleep(self, key: str, until: Time) -> None:
        """Waits until a time, or for a duration from the first call on, without holding a worker.

        The attempt is parked: the function is left by an `AttemptInterrupted`, and called again, on any worker, when
        the time has come. `key` names the wait in the attempt; so do those of the other waits.
        """
        await self._wait(key, {"Until": microseconds(until, datetime.now(timezone.utc))})

    async def wait_for_event(self, key: str, name: str, until: Time | None = None) -> SignalledEvent | None:
        """Waits for an event that is signalled to the run, as `sleep` does. Returns `None` if it does not come in time.

        An event that was signalled before counts, once for each wait of the attempt.
        """
        end = await self._wait(key, event_condition(name, until, datetime.now(timezone.utc)))
        return parse_event(name, end)

    async def ask(self, key: str, question: Question | str, options: Sequence[str] = ()) -> Answer:
        """Asks a person, as `sleep` waits, and returns the answer."""
        asked = Question(question, options) if isinstance(question, str) else question
        return (await self.ask_all({key: asked}))[key]

    async def approve(
        self,
        key: str,
        action: str,
        arguments: Mapping[str, Any],
        text: str = "",
        schema: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Asks a person to approve an action, as `sleep` waits. The kind `edit` approves it with other arguments."""
        text = text or f"The task wants to do {action}."
        return await self.ask(key, Question(text, schema=schema, action=action, arguments=arguments))

    async def ask_all(self, questions: Mapping[str, Question]) -> dict[str, Answer]:
        """Asks several questions at once, each under its key. They may be answered in any order."""
        conditions = {key: {"Answer": question.to_wire()} for key, question in questions.items()}
        ends = await self._wait_all(conditions, [])
        return {key: parse_answer(end) for key, end in ends.items()}

    async def delegate(self, key: str, task: ChildTask) -> Result | LostTask:
        """Delegates a task to a capability and waits for its end, as `sleep` does."""
        return (await self.delegate_all(key, [task]))[0]

    async def delegate_all(self, key: str, tasks: Sequence[ChildTask]) -> list[Result | LostTask]:
        """Delegates tasks that run at once, and waits for the ends of all; returns these in the order of the tasks."""
        children = children_of(self.order.task, self.order.attempt, key, tasks, self.order.allowance)
        ids = [child["id"] for child in children]
        end = (await self._wait_all({key: {"Tasks": {"tasks": ids}}}, children))[key]
        ended = end.get("TasksEnded", ()) if isinstance(end, dict) else ()
        inputs = {one.task: one for one in self.order.inputs}
        return [await self.read_input(inputs[id]) if id in inputs else parse_lost_task(id, ended) for id in ids]

    async def read_input(self, input: Input) -> Result:
        """Returns the complete result of one of the order's inputs."""
        return await self._guard(self._read_input(input))

    async def documents(self) -> list[Document]:
        """Returns the documents of the run."""
        if self.order.manifest is None:
            return []
        listed = unpack(await self._guard(self._blobs.get(self.order.manifest)), "the list of documents")
        return [Document(one["path"], one["sha256"], one["size"]) for one in listed]

    async def read_document(self, document: Document) -> bytes:
        """Returns the content of a document."""
        return await self._guard(self._blobs.get(document.sha256, document.size))

    async def _wait(self, key: str, condition: dict[str, Any]) -> Any:
        return (await self._wait_all({key: condition}, []))[key]

    async def _wait_all(
        self, conditions: Mapping[str, dict[str, Any]], children: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Waits for all conditions. The end of each is recorded as a step before it is used."""
        if not 1 <= len(conditions) <= MAX_WAITS:
            raise contract_error(f"an attempt can wait for 1 to {MAX_WAITS} things at once")
        if any(not key or key.startswith("plan.") for key in conditions):
            raise contract_error("the key of a wait is not empty and does not begin with 'plan.'")
        with self._one_at_a_time(", ".join(conditions)):
            ends: dict[str, Any] = {}
            for key in conditions:
                recorded = await self._recorded([key])
                if recorded is None:
                    break
                ends[key] = recorded[1]
            left = [key for key in conditions if key not in ends]
            open = [key for key in left if key not in self.order.ended_waits]
            if open:
                waits = [{"key": key, "condition": conditions[key]} for key in open]
                self._parking = Parking(waits, children)
                raise AttemptInterrupted("the attempt waits and is parked")
            for key in left:
                ends[key] = await self._record(key, self.order.ended_waits[key])
            return ends

    @contextmanager
    def _one_at_a_time(self, name: str) -> Iterator[None]:
        """Keeps the order of steps the same each time."""
        if self._is_busy:
            raise contract_error(f"{name!r} began while another step runs; use step_all for steps at the same time")
        self._check()
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    async def _recorded(self, names: Sequence[str]) -> tuple[str, Any] | None:
        """Takes the next recorded step, whose name must be one of these; `None` after the last."""
        step = self._journal.next_recorded()
        if step is None:
            return None
        name, blob = step
        if name not in names:
            place = self._journal.position + 1
            raise contract_error(
                f"the journal diverged at step {place}: it contains {name!r}, but the capability expects "
                f"{' or '.join(map(repr, names))}; the program or its input has changed"
            )
        data = await self._guard(self._blobs.read(blob))
        self._journal.take_recorded()
        try:
            return name, json.loads(data)
        except ValueError as error:
            raise contract_error(f"the recorded step {name!r} can't be read: {error}") from error

    async def _record(self, name: str, value: Any) -> Any:
        """Records a step, and returns its value as JSON has it."""
        try:
            text = dump_json(value, f"the value of step {name!r}")
        except TypeError as error:
            raise contract_error(str(error)) from error
        data = text.encode("utf-8", "replace")
        await self._guard(self._journal.append_step(name, data))
        return json.loads(data)

    async def _guard(self, work: Awaitable[T]) -> T:
        """Awaits work with the cluster. If it fails, this worker can't continue the attempt."""
        try:
            self._check()
        except BaseException:
            if inspect.iscoroutine(work):
                work.close()
            raise
        try:
            return await work
        except BlobTooLarge as error:
            raise TaskError(str(error)) from error
        except (BlobMissing, UnreadableMessage) as error:
            raise TaskError(str(error)) from error
        except (Fault, Fenced) as error:
            self._failure = error
            raise AttemptInterrupted(str(error)) from error

    def _check(self) -> None:
        if self._failure is not None:
            raise AttemptInterrupted(str(self._failure))
        if self._is_cancelled:
            raise AttemptInterrupted("the attempt was cancelled")
        if self._parking is not None:
            raise AttemptInterrupted("the attempt waits and is parked")

    def _cancel(self) -> None:
        """Marks the attempt as cancelled: nothing is appended any more."""
        self._is_cancelled = True

    async def _read_input(self, input: Input) -> Result:
        """Reads a result, and checks that the message is the one that the supervisor meant: a server that has lost
        its newest messages uses their sequences again."""
        what = f"the result of task {input.task}"
        message = await self._cluster.read_message(self.order.stream, seq=input.at_sequence)
        beginning = f"lane.{self.order.lane}.run.{self.order.run}.task.{input.task}."
        if message is None or message.is_forged or not message.subject.startswith(beginning):
            raise Fault(f"{what} is not at sequence {input.at_sequence} of {self.order.stream}")
        body = open_envelope(message.payload, "entry", message.headers)
        if isinstance(body, BlobRef):
            body = await self._blobs.get(body.sha256, body.size)
        entry = unpack(body, what) if isinstance(body, bytes) else body
        outcome = entry.get("Outcome") or {}
        finished = outcome.get("outcome", {}).get("Finished") if isinstance(outcome.get("outcome"), dict) else None
        if finished is None or outcome["worker"] != input.worker or finished["summary"][:280] != input.summary:
            raise Fault(f"{what} is not the one that the order names")
        return decode_result(await self._blobs.read(parse_blob_value(finished["result"])))
