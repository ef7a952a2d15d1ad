"""What an attempt can wait for: questions to persons, times, events, and tasks of other capabilities. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, Union

from ._wire import child_id, dump_json, question_digest
from .errors import TaskError

MAX_TEXT = 16_000
MAX_OPTIONS = 20
MAX_OPTION = 500
MAX_EVENT_NAME = 128
MAX_WAITS = 256
MAX_CHILDREN = 32

AnswerKind = Literal["approve", "edit", "reject", "respond", "answer", "decline"]
ExpiryAction = Literal["reject", "fail_task", "ask_again", "escalate"]
Time = Union[datetime, timedelta, float]
"""A time, or a duration from the first call on: in seconds if it is a number."""


@dataclass(frozen=True)
class Question:
    """A question to a person."""

    text: str
    options: Sequence[str] = ()
    """Proposed answers."""
    schema: Mapping[str, Any] | None = None
    """The JSON Schema of the answer; without one any text is accepted."""
    to: str = ""
    """The person or role that should answer; empty is anyone."""
    expires: timedelta | float | None = None
    """The time after which the question expires, in seconds if it is a number."""
    on_expiry: ExpiryAction = "reject"
    """What happens then; it is never an approval."""
    escalate_to: str = ""
    """The person or role that gets the question then, for `escalate`."""
    action: str | None = None
    """The action that a person has to approve, with `arguments`; without one the question asks for an input."""
    arguments: Mapping[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """Returns the question as a wait has it."""
        schema = "" if self.schema is None else dump_json(self.schema, "the schema")
        if self.action is None:
            return self._with_expiry(self._input(schema))
        if not 1 <= len(self.action.encode()) <= MAX_EVENT_NAME:
            raise contract_error(f"the name of an action has 1 to {MAX_EVENT_NAME} bytes")
        arguments = dump_json(dict(self.arguments or {}), "the arguments")
        approval = {"tool": self.action, "arguments": cut(arguments)}
        if schema and len(schema.encode()) <= MAX_TEXT:
            approval["schema"] = schema
        question = {
            "subject": {"Approval": approval},
            "text": cut(self.text),
            "digest": question_digest("call", self.action, arguments),
            "decisions": ["approve", "edit", "reject"],
        }
        return self._with_expiry(question)

    def _input(self, schema: str) -> dict[str, Any]:
        options = list(self.options)
        if not self.text.strip() or len(self.text.encode()) > MAX_TEXT:
            raise contract_error(f"a question has 1 to {MAX_TEXT} bytes")
        if len(options) > MAX_OPTIONS or any(len(option.encode()) > MAX_OPTION for option in options):
            raise contract_error(f"at most {MAX_OPTIONS} options of {MAX_OPTION} bytes each are possible")
        if len(schema.encode()) > MAX_TEXT:
            raise contract_error(f"the schema is longer than {MAX_TEXT} bytes")
        subject: dict[str, Any] = {}
        if options:
            subject["options"] = options
        if schema:
            subject["schema"] = schema
        return {
            "subject": {"Input": subject},
            "text": self.text,
            "digest": question_digest("input", self.text, "\n".join(options), schema),
            "decisions": ["answer", "decline"],
        }

    def _with_expiry(self, question: dict[str, Any]) -> dict[str, Any]:
        if self.to:
            question["to"] = self.to
        if (self.on_expiry == "escalate") != bool(self.escalate_to):
            raise contract_error("on_expiry='escalate' and escalate_to belong together")
        if self.expires is None:
            if self.on_expiry != "reject":
                raise contract_error("on_expiry needs expires: the question never expires without it")
            return question
        seconds = self.expires.total_seconds() if isinstance(self.expires, timedelta) else self.expires
        if not 1 <= seconds <= 31_536_000:
            raise contract_error("a question expires after 1 second to 1 year")
        question["expiry"] = {"after": int(seconds), "action": self.on_expiry}
        if self.escalate_to:
            question["expiry"]["escalate_to"] = self.escalate_to
        return question


@dataclass(frozen=True)
class Answer:
    """The answer of a person."""

    kind: AnswerKind
    """`answer` or `decline` for an input; `approve`, `edit`, `reject` or `respond` for an approval."""
    by: str = ""
    """The person; empty if the question expired."""
    value: Any = None
    """The value of `answer`, the arguments of `edit`."""
    text: str = ""
    """The reason of `reject`, the content of `respond`."""

    @property
    def is_approved(self) -> bool:
        """`True` for `approve` and `edit`."""
        return self.kind in ("approve", "edit")


@dataclass(frozen=True)
class SignalledEvent:
    """An event that was signalled to the run."""

    name: str
    by: str
    data: Any = None


@dataclass(frozen=True)
class ChildTask:
    """A task that an attempt delegates."""

    capability: str
    objective: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    review: Any = None
    """The review of its result, as in a plan file on the wire; without one that of its capability."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Its limits, such as `{"run_time": 60, "max_attempts": 2}`."""
    budget: Mapping[str, int] = field(default_factory=dict)
    """Its budget; at most an equal share of what the attempt has reserved."""

    def to_wire(self, id: str, share: Mapping[str, int]) -> dict[str, Any]:
        """Returns the task as a plan has it."""
        budget = {**self.budget}
        for resource, amount in share.items():
            budget[resource] = min(amount, budget.get(resource, amount))
        task: dict[str, Any] = {"id": id, "objective": self.objective, "capability": self.capability}
        optional = {"parameters": dict(self.parameters), "limits": dict(self.limits), "budget": budget}
        task.update({name: value for name, value in optional.items() if value})
        if self.review is not None:
            task["review"] = self.review
        return task


@dataclass(frozen=True)
class LostTask:
    """A delegated task without a result."""

    task: str
    state: str
    """`failed`, `timed_out`, `cancelled` or `refused`; `unknown` if the task has no end."""
    message: str
    """The reason."""
    produced: str | None = None
    """The output of its last attempt until the error."""


def contract_error(message: str) -> TaskError:
    """Returns the error for a mistake in the capability's own code."""
    return TaskError(message, "panic")


def cut(text: str) -> str:
    """Cuts a text to the length that a question may have."""
    data = text.encode()
    return text if len(data) <= MAX_TEXT else data[: MAX_TEXT - 3].decode("utf-8", "ignore") + "…"


def microseconds(time: Time, now: datetime) -> int:
    """Returns a time in microseconds since 1970."""
    if isinstance(time, datetime):
        at = time if time.tzinfo else time.astimezone()
    else:
        at = now + (time if isinstance(time, timedelta) else timedelta(seconds=time))
    return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


def event_condition(name: str, until: Time | None, now: datetime) -> dict[str, Any]:
    """Returns the condition that waits for an event."""
    if not name.strip() or len(name.encode()) > MAX_EVENT_NAME or not name.isprintable():
        raise contract_error(f"the name of an event is text in one line, of 1 to {MAX_EVENT_NAME} bytes")
    condition: dict[str, Any] = {"name": name}
    if until is not None:
        condition["until"] = microseconds(until, now)
    return {"Event": condition}


def parse_event(name: str, end: Any) -> SignalledEvent | None:
    """Returns the event that ended a wait; `None` if it did not come in time."""
    signalled = end.get("Signalled") if isinstance(end, dict) else None
    if signalled is None:
        return None
    return SignalledEvent(name, signalled["by"], parse_json(signalled["data"]) if signalled["data"] else None)


def parse_answer(end: Any) -> Answer:
    """Returns the answer that ended a wait."""
    answered = end.get("Answered") if isinstance(end, dict) else None
    if answered is None:
        raise contract_error(f"a question ended without an answer: {end}")
    by, answer = answered["by"], answered["answer"]
    if answer == "Approve":
        return Answer("approve", by)
    if answer == "Decline":
        return Answer("decline", by)
    kind, fields = next(iter(answer.items()))
    if kind == "Edit":
        return Answer("edit", by, value=parse_json(fields["arguments"]))
    if kind == "Answer":
        return Answer("answer", by, value=parse_json(fields["value"]))
    if kind == "Reject":
        return Answer("reject", by, text=fields["message"])
    if kind == "Respond":
        return Answer("respond", by, text=fields["content"])
    raise contract_error(f"the answer {kind!r} is not known; upgrade this package")


def parse_json(text: str) -> Any:
    """Returns a JSON value; text that is no JSON is itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def children_of(
    task: str, attempt: int, key: str, tasks: Sequence[ChildTask], allowance: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Returns the tasks that a call delegates. Each gets an equal share of the allowance; the attempt keeps one."""
    if not 1 <= len(tasks) <= MAX_CHILDREN:
        raise contract_error(f"1 to {MAX_CHILDREN} tasks can be delegated at once")
    share = {resource: amount // (len(tasks) + 1) for resource, amount in allowance.items()}
    return [one.to_wire(child_id(task, attempt, f"{key}-{number}"), share) for number, one in enumerate(tasks)]


def parse_lost_task(task: str, ended: Any) -> LostTask:
    """Returns the end of a delegated task that has no result."""
    end = next((one["end"] for one in ended if one["task"] == task), None)
    if not isinstance(end, dict):
        return LostTask(task, "unknown", "the task has no end")
    kind, fields = next(iter(end.items()))
    states = {"Completed": "completed", "TimedOut": "timed_out"}
    text = fields.get("message") or fields.get("reason") or fields.get("summary") or ""
    return LostTask(task, states.get(kind, kind.lower()), text, fields.get("produced"))
