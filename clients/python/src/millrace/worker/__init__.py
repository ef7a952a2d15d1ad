"""A worker in Python: functions become durable capabilities of a cluster.

    from millrace.worker import Attempt, Worker

    worker = Worker()

    @worker.capability("word-count", "Counts the words of a text.")
    async def word_count(attempt: Attempt, text: str) -> dict[str, int]:
        words = await attempt.step("count", lambda: len(text.split()))
        return {"words": words}

    worker.run()

It needs the packages of `pip install 'millrace-client[worker]'`. The wire protocol is in docs/wire.md.
"""

try:
    import msgpack as _msgpack  # type: ignore[import-untyped]  # noqa: F401
    import nats as _nats  # noqa: F401
except ImportError as error:
    raise ImportError("millrace.worker needs more packages: pip install 'millrace-client[worker]'") from error

from ._attempt import Attempt, Document
from ._order import Input, Order
from ._result import Quotation, Result, Source
from ._sync_attempt import SyncAttempt
from ._waits import Answer, ChildTask, LostTask, Question, SignalledEvent
from ._worker import Worker
from .errors import AttemptInterrupted, ErrorKind, TaskError, WorkerError, WorkerFault

__all__ = [
    "Answer",
    "Attempt",
    "AttemptInterrupted",
    "ChildTask",
    "Document",
    "ErrorKind",
    "Input",
    "LostTask",
    "Order",
    "Question",
    "Quotation",
    "Result",
    "SignalledEvent",
    "Source",
    "SyncAttempt",
    "TaskError",
    "Worker",
    "WorkerError",
    "WorkerFault",
]
