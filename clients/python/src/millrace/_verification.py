"""The verdicts on a text."""

from __future__ import annotations

from dataclasses import dataclass

from .types import RunResult, TaskResult, VerificationCounts, VerifiedStatement

NO_STATEMENTS: VerificationCounts = {
    "statements": 0,
    "supported": 0,
    "by_quotation": 0,
    "by_model": {},
    "partly": 0,
    "contradicted": 0,
    "unsupported": 0,
    "unverified": 0,
    "removed": 0,
}


@dataclass(frozen=True)
class Verification:
    """The verdicts on the statements of a text."""

    run: str
    """The id of the run that verified it."""
    output: str
    """The text, with a footnote at each statement that is not supported."""
    statements: list[VerifiedStatement]
    """The statements in order, with their places in `output`."""
    counts: VerificationCounts
    """The numbers of statements, by verdict and finder."""


def verification_of(state: RunResult, result: TaskResult) -> Verification:
    """Returns the verdicts of a run that has ended."""
    counts = state.get("verification") or NO_STATEMENTS.copy()
    return Verification(state["run"], result.get("output", ""), result.get("statements", []), counts)
