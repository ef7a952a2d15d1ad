"""The fields of a question, for both clients."""

from __future__ import annotations

from typing import Any

from .types import AnswerKind, QuestionKindJson, QuestionLine, QuestionStatus


class QuestionFields:
    """A question of a run to a person, as of when it was read."""

    def __init__(self, data: QuestionLine) -> None:
        self.data = data
        """All fields."""

    @property
    def id(self) -> str:
        """Its id, with slashes."""
        return self.data["id"]

    @property
    def run(self) -> str:
        """The id of its run."""
        return self.data["run"]

    @property
    def task(self) -> str | None:
        """The task that asks; `None` for a question about the plan."""
        return self.data["task"]

    @property
    def kind(self) -> QuestionKindJson:
        """Its kind: `approval`, `input`, `review` or `plan`."""
        return self.data["kind"]

    @property
    def status(self) -> QuestionStatus:
        """Its status: `open`, `answered`, `expired` or `withdrawn`."""
        return self.data["status"]

    @property
    def text(self) -> str:
        """The question."""
        return self.data["text"]

    @property
    def options(self) -> list[str]:
        """The answers to choose from; empty if any answer is possible."""
        return self.data["options"]

    @property
    def decisions(self) -> list[AnswerKind]:
        """The kinds of answers that are possible."""
        return self.data["decisions"]

    @property
    def tool(self) -> str | None:
        """The tool whose call must be approved."""
        return self.data["tool"]

    @property
    def arguments(self) -> Any:
        """The arguments of that call."""
        return self.data["arguments"]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.status}: {self.text!r}>"
