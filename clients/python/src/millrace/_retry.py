"""The delays between attempts, and the time after which the client gives up. Pure but for the random jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

TRANSIENT_STATUSES = frozenset({502, 503, 504})


@dataclass(frozen=True)
class RetryPolicy:
    """The delays between attempts, and the time after which the client gives up."""

    first_delay: float = 0.1
    """The delay in seconds before the first repetition; it doubles with each one."""
    max_delay: float = 5.0
    """The longest delay in seconds."""
    request_time: float = 60.0
    """The time in seconds for which a request is repeated."""
    stream_time: float | None = 300.0
    """The time in seconds for which a stream that fails, or a wait, is continued; `None` is forever."""

    def delay(self, failures: int, random: random.Random) -> float:
        """Returns the delay after this number of failures: with jitter, so that clients do not return all at once."""
        longest = min(self.max_delay, self.first_delay * 2.0 ** min(failures - 1, 30))
        return longest * (0.5 + random.random() / 2)


@dataclass
class Attempts:
    """The failures of one operation since its last progress."""

    policy: RetryPolicy
    limit: float | None
    """The time in seconds from the first failure, after which the operation is given up."""
    failed_since: float | None = None
    """The time of the first failure since the last progress."""
    failures: int = 0
    random: random.Random = field(default_factory=random.Random)

    def progress(self) -> None:
        """Notes that the operation has made progress."""
        self.failed_since, self.failures = None, 0

    def fail(self, now: float, at_least: float = 0.0) -> float | None:
        """Notes a failure, and returns the delay before the next attempt; `None` if the operation is given up."""
        self.failures += 1
        if self.failed_since is None:
            self.failed_since = now
        delay = max(at_least, self.policy.delay(self.failures, self.random))
        if self.limit is not None and now + delay - self.failed_since > self.limit:
            return None
        return delay


def is_transient(status: int, content_type: str) -> bool:
    """Returns `True` if a response says that a repetition may succeed.

    502 and 504 count if a proxy sent them: a gateway that is reached describes its errors as problems.
    """
    return status == 503 or (status in TRANSIENT_STATUSES and not content_type.startswith("application/problem+json"))


def retry_after(value: str | None) -> float:
    """Returns the seconds of a header `Retry-After`, at most 30; 0 without one, or if it is a date."""
    return min(float(value), 30.0) if value is not None and value.isdecimal() else 0.0
