"""The errors with which an attempt ends, and those by which it is interrupted."""

from __future__ import annotations

from typing import Any, Literal

from ._wire import NewerMessage, UnreadableMessage

ErrorKind = Literal["invalid_task", "wrong_parameters", "unclear", "model", "tool", "limit", "panic", "other"]
"""The kinds of errors. `invalid_task`, `wrong_parameters` and `unclear` are not retried."""

__all__ = [
    "AttemptInterrupted",
    "ErrorKind",
    "NewerMessage",
    "TaskError",
    "UnreadableMessage",
    "WorkerError",
    "WorkerFault",
]


class WorkerError(Exception):
    """The worker can't be started: no cluster, no permission, or a capability that is defined wrongly."""


class TaskError(Exception):
    """An error that ends the attempt; whether it is retried follows from its kind and the limits of the task.

    Any other exception of a capability ends its attempt too, with the kind `other`.
    """

    def __init__(
        self,
        message: str,
        kind: ErrorKind = "other",
        *,
        limit: str | None = None,
        usage: dict[str, int] | None = None,
        models: dict[str, dict[str, int]] | None = None,
        produced: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        """The problem, its place, and a way out."""
        self.kind: ErrorKind = kind
        """The kind, which decides on a retry."""
        self.limit = limit
        """The limit that was reached, if it was one: `allowance`, `turns`, `tool_calls`, …"""
        self.usage = usage or {}
        """The usage of models until the error."""
        self.models = models or {}
        """The same by model."""
        self.produced = produced
        """The output until the error."""

    def to_wire(self) -> dict[str, Any]:
        """Returns the error as an outcome has it."""
        error: dict[str, Any] = {"kind": self.kind, "message": self.message[:4_000]}
        optional = {"limit": self.limit, "usage": self.usage, "models": self.models}
        error.update({name: value for name, value in optional.items() if value})
        if self.produced:
            error["produced"] = self.produced[:16_000]
        return error


class WorkerFault(Exception):
    """An error that another worker may not have, such as a full disk.

    The attempt is released: it does not fail, and is delivered again, to any worker.
    """


class AttemptInterrupted(BaseException):
    """The attempt can't continue here: it waits and is parked, or another worker has claimed it.

    Let it pass. It is no `Exception`, so that `except Exception` does not catch it. `finally` blocks run.
    """
