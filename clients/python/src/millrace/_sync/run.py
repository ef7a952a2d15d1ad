"""A run: its events, its state, its results, and the commands that steer it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Union, cast, overload

from .._clock import monotonic, sleep
from .._follow import Follower
from .._requests import (
    REPORT_TYPES,
    Level,
    ReportFormat,
    Request,
    WaitFor,
    body_of,
    command,
    list_of,
    query_of,
    quote_file,
    quote_part,
)
from ..errors import WaitTimeout
from ..types import (
    AcceptedCommand,
    AppliedCommand,
    EntryLine,
    FileLine,
    FileList,
    JournalPage,
    LoggedDecision,
    PlannerTranscript,
    PushAuthenticationBody,
    PushConfigJson,
    PushConfigList,
    QuestionList,
    RunLog,
    RunDeletionJson,
    RunResult,
    RunSpend,
    SourceText,
    TaskJson,
    TaskList,
    TaskResult,
    TaskTranscript,
    TraceDocument,
    Timeline,
)
from .question import Question
from .stream import EventStream
from .transport import Transport

CommandReply = Union[AppliedCommand, AcceptedCommand]
POLL = 30
"""The time in seconds that one request of a wait takes, less than the idle time of usual proxies."""


class Run:
    """A run. Creating one sends no request.

    The commands return when a supervisor has decided on them: an `AppliedCommand` with the events of the decision,
    or an `AcceptedCommand` if no supervisor has decided within `timeout` seconds, or with `wait="accepted"`. They
    raise `Refused` with the reason if the state of the run does not allow them. A random idempotency key makes sure
    that each one is applied once.
    """

    def __init__(self, transport: Transport, id: str, sequence: int | None = None) -> None:
        self._transport = transport
        self.id = id
        """The id of the run."""
        self.sequence = sequence
        """The sequence of the log at which its submission is visible; `None` unless it was submitted by this client."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def events(
        self,
        level: Level = "decisions",
        *,
        types: str | Iterable[str] | None = None,
        task: str | None = None,
        after: str | None = None,
    ) -> EventStream:
        """Follows the events of the run, from the beginning or after the event with the id `after`, until it ends.

        `decisions` are the events of the supervisor, `steps` also the entries of the journals as `step`, and `live`
        also model output as `delta`. `types` and `task` select events.
        """
        query = query_of(level=level, types=list_of(types), task=task)
        follower = Follower(after, shows_lag=level == "live")
        return EventStream(self._transport, self._get("events", query), follower)

    def get(self, at: int | None = None) -> RunResult:
        """Reads the run, now or as of a sequence of the log."""
        return cast(RunResult, self._read("", query_of(at=at)))

    def wait(self, timeout: float | None = None) -> RunResult:
        """Waits for the end of the run, for as long as it takes or for `timeout` seconds. Raises `WaitTimeout` then."""
        start = monotonic()
        while True:
            left = math.inf if timeout is None else max(0.0, timeout - (monotonic() - start))
            seconds = math.ceil(min(float(POLL), left))
            request = self._get("wait", query_of(timeout=seconds), server_time=seconds)
            longest = self._transport.retry.stream_time
            poll_start = monotonic()
            response = self._transport.send(request, limit=min(left, math.inf if longest is None else longest))
            state = cast(RunResult, response.json())
            if response.status_code == 200:
                return state
            if timeout is not None and monotonic() - start >= timeout:
                raise WaitTimeout(
                    f"run {self.id} has not ended after {timeout} s; its state is {state['state']}", state
                )
            if monotonic() - poll_start < seconds / 2:
                # A gateway that stops answers at once; another one will take its place.
                sleep(min(1.0, left))

    def tasks(self, state: str | Iterable[str] | None = None, *, at: int | None = None) -> TaskList:
        """Lists the tasks with their attempts, now or as of a sequence; `state` selects states of tasks."""
        return cast(TaskList, self._read("tasks", query_of(state=list_of(state), at=at)))

    def task(self, task: str, *, at: int | None = None) -> TaskJson:
        """Reads one task with its attempts, now or as of a sequence."""
        return cast(TaskList, self._read(f"tasks/{quote_part(task)}", query_of(at=at)))["tasks"][0]

    def log(
        self, *, after: int | None = None, at: int | None = None, limit: int | None = None
    ) -> Iterator[LoggedDecision]:
        """Iterates over the decisions with the messages that they answer, part by part; a part has `limit` decisions."""
        next: int | None = after
        while True:
            part = cast(RunLog, self._read("log", query_of(after=next, at=at, limit=limit)))
            for decision in part["decisions"]:
                yield decision
            next = part["next"]
            if not next:
                return

    def timeline(self, task: str | None = None, *, at: int | None = None) -> Timeline:
        """Reads what each attempt did, from when to when; of one task or of all."""
        return cast(Timeline, self._read("timeline", query_of(task=task, at=at)))

    def journal(
        self,
        task: str | None = None,
        *,
        planner: bool = False,
        attempt: int | None = None,
        after: int | None = None,
        at: int | None = None,
        limit: int | None = None,
        full: bool = False,
    ) -> Iterator[EntryLine]:
        """Iterates over the entries of the journals, part by part; a part has `limit` entries.

        Values that are in the blob store are named by their SHA-256, and returned with `full`.
        """
        next: int | None = after
        flags = {"planner": "true" if planner else None, "full": "true" if full else None}
        while True:
            query = query_of(task=task, attempt=attempt, after=next, at=at, limit=limit, **flags)
            part = cast(JournalPage, self._read("journal", query))
            for entry in part["entries"]:
                yield entry
            next = part["next"]
            if not next:
                return

    def spend(self) -> RunSpend:
        """Reads the usage by role, capability, model and task, and over time."""
        return cast(RunSpend, self._read("spend"))

    def source(
        self, source: str, *, task: str | None = None, first: int | None = None, last: int | None = None
    ) -> SourceText:
        """Reads lines of a source of the deliverable, or of the result of a task, as citations name them."""
        of_task = f"tasks/{quote_part(task)}/" if task is not None else ""
        path = f"{of_task}sources/{quote_part(source)}"
        return cast(SourceText, self._read(path, query_of(first=first, last=last)))

    def result(self) -> TaskResult:
        """Reads the deliverable with its sources.

        Raises `RunNotEnded`, or `NoDeliverable` if the run ended without one.
        """
        return cast(TaskResult, self._read("result"))

    @overload
    def report(self, format: Literal["markdown", "html"] = "markdown") -> str: ...

    @overload
    def report(self, format: Literal["json"]) -> TaskResult: ...

    def report(self, format: ReportFormat = "markdown") -> str | TaskResult:
        """Reads the report."""
        response = self._transport.send(self._get("report", accept=REPORT_TYPES[format]))
        return cast(TaskResult, response.json()) if format == "json" else response.text

    def files(self, folder: str | None = None, *, at: int | None = None) -> list[FileLine]:
        """Lists the files of the run, or those in a folder; now or as of a sequence."""
        return cast(FileList, self._read("files", query_of(folder=folder, at=at)))["files"]

    def file(self, path: str, version: int | None = None, *, at: int | None = None) -> bytes:
        """Reads a file, in its newest version, in another one, or as of a sequence."""
        request = self._get(f"files/{quote_file(path)}", query_of(version=version, at=at), accept="*/*")
        return (self._transport.send(request)).content

    def file_versions(self, path: str) -> list[FileLine]:
        """Lists the versions of a file."""
        return cast(FileList, self._read(f"files/{quote_file(path)}", {"versions": "true"}))["files"]

    def transcript(self, task: str, attempt: int | None = None, *, at: int | None = None) -> TaskTranscript:
        """Reads what the agents of a task did, in all attempts or in one; now or as of a sequence."""
        path = f"tasks/{quote_part(task)}/transcript"
        return cast(TaskTranscript, self._read(path, query_of(attempt=attempt, at=at)))

    def planner_transcript(self, turn: int | None = None, *, at: int | None = None) -> PlannerTranscript:
        """Reads what the planner did, in all turns or in one; now or as of a sequence."""
        return cast(PlannerTranscript, self._read("planner/transcript", query_of(attempt=turn, at=at)))

    def trace(self, content: bool | None = None, split: str | None = None) -> TraceDocument:
        """Reads what the run did as spans (OTLP/JSON), with `content` with prompts, replies and results."""
        wanted = None if content is None else str(content).lower()
        return cast(TraceDocument, self._read("trace", query_of(content=wanted, split=split)))

    def questions(self, history: bool = False) -> list[Question]:
        """Lists the open questions of the run, with `history` the closed ones too."""
        query = query_of(history="true" if history else None)
        lines = cast(QuestionList, self._read("questions", query))["questions"]
        return [Question(self._transport, line) for line in lines]

    def pause(
        self, *, wait: WaitFor = "decided", timeout: int | None = None, idempotency_key: str | None = None
    ) -> CommandReply:
        """Pauses the run: running tasks finish, and no new ones start."""
        return self._command(command(self.id, "pause", None, wait, timeout, idempotency_key))

    def interrupt(
        self, *, wait: WaitFor = "decided", timeout: int | None = None, idempotency_key: str | None = None
    ) -> CommandReply:
        """Interrupts the run: work in flight is returned, and nothing runs until it is resumed."""
        return self._command(command(self.id, "interrupt", None, wait, timeout, idempotency_key))

    def resume(
        self,
        budget: Mapping[str, Any] | None = None,
        *,
        wait: WaitFor = "decided",
        timeout: int | None = None,
        idempotency_key: str | None = None,
    ) -> CommandReply:
        """Resumes the run, with new total limits if `budget` has any."""
        body = body_of(budget=budget)
        return self._command(command(self.id, "resume", body, wait, timeout, idempotency_key))

    def cancel(
        self,
        reason: str | None = None,
        *,
        wait: WaitFor = "decided",
        timeout: int | None = None,
        idempotency_key: str | None = None,
    ) -> CommandReply:
        """Cancels the run."""
        body = body_of(reason=reason)
        return self._command(command(self.id, "cancel", body, wait, timeout, idempotency_key))

    def delete(self, wait: int | None = None) -> RunDeletionJson:
        """Deletes the run, which must have ended, and waits up to `wait` seconds for a supervisor to do it."""
        query = query_of(wait=wait)
        request = Request("DELETE", f"/runs/{quote_part(self.id)}", query)
        return cast(RunDeletionJson, (self._transport.send(request)).json())

    def push_configs(self) -> list[PushConfigJson]:
        """Lists the receivers of A2A notifications about the run, without their secrets."""
        return cast(PushConfigList, self._read("push-configs"))["push_configs"]

    def push_config(self, id: str) -> PushConfigJson:
        """Reads a receiver of A2A notifications about the run."""
        return cast(PushConfigJson, self._read(f"push-configs/{quote_part(id)}"))

    def set_push_config(
        self,
        url: str,
        *,
        id: str | None = None,
        token: str | None = None,
        authentication: PushAuthenticationBody | None = None,
    ) -> PushConfigJson:
        """Names a receiver of A2A notifications about the run, in place of the one with its id."""
        body = body_of(url=url, id=id, token=token, authentication=authentication)
        request = Request("POST", f"/runs/{quote_part(self.id)}/push-configs", body=body)
        return cast(PushConfigJson, (self._transport.send(request)).json())

    def delete_push_config(self, id: str) -> None:
        """Deletes a receiver of A2A notifications about the run."""
        self._transport.send(
            Request("DELETE", f"/runs/{quote_part(self.id)}/push-configs/{quote_part(id)}")
        )

    def message(
        self,
        text: str,
        *,
        wait: WaitFor = "decided",
        timeout: int | None = None,
        idempotency_key: str | None = None,
    ) -> CommandReply:
        """Sends a message to the planner."""
        return self._command(command(self.id, "message", {"text": text}, wait, timeout, idempotency_key))

    def signal(
        self,
        name: str,
        data: Any = None,
        *,
        wait: WaitFor = "decided",
        timeout: int | None = None,
        idempotency_key: str | None = None,
    ) -> CommandReply:
        """Signals an event, which ends the waits for it."""
        body = {"name": name, **body_of(data=data)}
        return self._command(command(self.id, "signal", body, wait, timeout, idempotency_key))

    def add(
        self,
        tasks: Iterable[Mapping[str, Any]],
        *,
        wait: WaitFor = "decided",
        timeout: int | None = None,
        idempotency_key: str | None = None,
    ) -> CommandReply:
        """Adds tasks, written as in a plan: all of them or none."""
        body = {"tasks": list(tasks)}
        return self._command(command(self.id, "tasks", body, wait, timeout, idempotency_key))

    def edit(
        self,
        task: str,
        changes: Mapping[str, Any],
        *,
        wait: WaitFor = "decided",
        timeout: int | None = None,
        idempotency_key: str | None = None,
    ) -> CommandReply:
        """Changes a task that no worker has claimed yet. `types.EditBody` has the fields of `changes`."""
        path = f"tasks/{quote_part(task)}"
        return self._command(command(self.id, path, changes, wait, timeout, idempotency_key, "PATCH"))

    def cancel_task(
        self,
        task: str,
        reason: str | None = None,
        *,
        wait: WaitFor = "decided",
        timeout: int | None = None,
        idempotency_key: str | None = None,
    ) -> CommandReply:
        """Cancels a task and its dependents."""
        path, body = f"tasks/{quote_part(task)}/cancel", body_of(reason=reason)
        return self._command(command(self.id, path, body, wait, timeout, idempotency_key))

    def retry(
        self,
        task: str,
        feedback: str | None = None,
        changes: Mapping[str, Any] | None = None,
        *,
        wait: WaitFor = "decided",
        timeout: int | None = None,
        idempotency_key: str | None = None,
    ) -> CommandReply:
        """
        Retries a task and everything that depends on it.

        `changes` are changes of the task, as of `edit`: the attempt begins with them.
        """
        path, body = f"tasks/{quote_part(task)}/retry", {**(changes or {}), **body_of(feedback=feedback)}
        return self._command(command(self.id, path, body, wait, timeout, idempotency_key))

    def _command(self, request: Request) -> CommandReply:
        return cast(CommandReply, (self._transport.send(request)).json())

    def _read(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return (self._transport.send(self._get(path, query))).json()

    def _get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
        server_time: float = 0.0,
    ) -> Request:
        below = f"/{path}" if path else ""
        return Request(
            "GET", f"/runs/{quote_part(self.id)}{below}", query or {}, accept=accept, server_time=server_time
        )
