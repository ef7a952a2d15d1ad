"""Orders: what a worker has to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ._wire import UnreadableMessage, fnv1a, is_name

START_EVENT_KEY = "plan.wait_for_event"


@dataclass(frozen=True)
class Input:
    """A result that the task builds on."""

    task: str
    objective: str
    capability: str
    worker: str
    summary: str
    """The result in a sentence; `Attempt.read_input` returns the complete one."""
    at_sequence: int
    """The sequence of its outcome in the lane."""


@dataclass(frozen=True)
class Order:
    """An order for an attempt at a task."""

    run: str
    lane: int
    task: str
    attempt: int
    mission: str
    """The objective of the whole run."""
    objective: str
    """The objective of the task."""
    capability: str
    parameters: dict[str, Any]
    inputs: tuple[Input, ...] = ()
    feedback: tuple[str, ...] = ()
    """The feedback on earlier attempts, oldest first."""
    allowance: dict[str, int] = field(default_factory=dict)
    """The amounts that are reserved for the attempt."""
    ended_waits: dict[str, Any] = field(default_factory=dict)
    """The ends of the waits that have ended, by their keys."""
    is_final: bool = False
    """`True` if the result is the deliverable of the run."""
    depth: int = 0
    """The depth of the task among delegated ones."""
    manifest: str | None = None
    """The blob with the list of documents."""
    decided: tuple[int, int] | None = None
    """The decision as of which the order was published: its sequence and its time."""
    unsupported: str = ""
    """What the order demands and this package can't do; empty if it is nothing."""
    body: dict[str, Any] = field(default_factory=dict)
    """All fields of the order."""

    @property
    def subject(self) -> str:
        """The subject of the order."""
        return f"work.{self.capability}.{self.run}.{self.task}.{self.attempt}"

    @property
    def journal(self) -> str:
        """The subject of the journal."""
        return f"lane.{self.lane}.run.{self.run}.task.{self.task}.{self.attempt}"

    @property
    def stream(self) -> str:
        """The stream of the journal."""
        return f"LANE_{self.lane}"

    def check_address(self, subject: str, lanes: int) -> None:
        """Checks that the order belongs to its subject and its lane."""
        if subject != self.subject:
            raise UnreadableMessage(f"the subject of the order must be {self.subject}")
        lane = lane_of_run(self.run, lanes)
        if self.lane != lane:
            raise UnreadableMessage(f"run {self.run} is in lane {lane}, not {self.lane}")


def lane_of_run(run: str, lanes: int) -> int:
    """Returns the lane of a run."""
    return fnv1a(run) % max(lanes, 1)


def parse_order(body: Any) -> Order:
    """Reads an order."""
    try:
        work = body["work"]["Task"]
        order = Order(
            run=body["run"],
            lane=body["lane"],
            task=work["task"],
            attempt=work["attempt"],
            mission=body["mission"],
            objective=body["objective"],
            capability=body["capability"],
            parameters=dict(body.get("parameters") or {}),
            inputs=tuple(parse_input(one) for one in body.get("inputs") or ()),
            feedback=tuple(body.get("feedback") or ()),
            allowance={name: amount for name, amount in (body.get("allowance") or {}).items() if amount is not None},
            ended_waits={wait["key"]: wait["end"] for wait in body.get("ended_waits") or ()},
            is_final=bool(body.get("is_final")),
            depth=body.get("depth") or 0,
            manifest=(body.get("documents") or {}).get("manifest"),
            decided=parse_decided(body.get("decided")),
            unsupported=unsupported_demand(body),
            body=body,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnreadableMessage(f"the order is unreadable: {type(error).__name__}: {error}") from error
    names = (order.run, order.task, order.capability)
    numbers = (order.lane, order.attempt)
    if not all(map(is_name, names)) or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise UnreadableMessage("the order is unreadable: a name or a number is invalid")
    return order


def parse_input(body: Any) -> Input:
    """Reads an input."""
    names = ("task", "objective", "capability", "worker", "summary", "at_sequence")
    return Input(*(body[name] for name in names))


def parse_decided(body: Any) -> tuple[int, int] | None:
    """Reads the decision that an order names."""
    return None if body is None else (body["sequence"], body["at"])


def unsupported_demand(body: dict[str, Any]) -> str:
    """Returns what an order demands that only agents of Millrace can do; empty if it is nothing."""
    if body.get("fork") is not None or body.get("shared") is not None:
        return "continues the conversation of an agent"
    overrides = body.get("overrides") or {}
    if overrides.get("tools") is not None or overrides.get("permissions"):
        return "restricts the tools or the permissions of an agent"
    return ""
