"""An attempt as a capability sees it that is a plain function and runs in a thread of its own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from ._attempt import Attempt, Document
from ._order import Input, Order
from ._result import Result
from ._waits import Answer, ChildTask, LostTask, Question, SignalledEvent, Time

P = ParamSpec("P")
T = TypeVar("T")


class SyncAttempt:
    """An attempt at a task, for plain functions. The methods are those of `Attempt`, without `await`."""

    def __init__(self, attempt: Attempt, loop: asyncio.AbstractEventLoop) -> None:
        self._attempt = attempt
        self._loop = loop

    @property
    def order(self) -> Order:
        """The order: the task and everything that it refers to."""
        return self._attempt.order

    @property
    def worker(self) -> str:
        """The id of this worker."""
        return self._attempt.worker

    @property
    def objective(self) -> str:
        """The objective of the task."""
        return self._attempt.objective

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the task."""
        return self._attempt.parameters

    @property
    def claim_number(self) -> int:
        """The number of this claim, from 1."""
        return self._attempt.claim_number

    @property
    def is_cancelled(self) -> bool:
        """`True` if the attempt is not wanted any more: return soon."""
        return self._attempt.is_cancelled

    @property
    def start_event(self) -> SignalledEvent | None:
        """The event without which the task did not start, if it has one."""
        return self._attempt.start_event

    def step(self, name: str, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Does a step once, in this thread, as `Attempt.step` does."""
        with self._attempt._one_at_a_time(name):
            recorded = self._call(self._attempt._recorded([name]))
            if recorded is not None:
                value: T = recorded[1]
                return value
            value = self._call(self._attempt._record(name, work(*args, **kwargs)))
            return value

    def step_all(self, works: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Does steps at the same time, each once and in a thread of its own, as `Attempt.step_all` does."""
        in_threads = {name: functools.partial(asyncio.to_thread, work) for name, work in works.items()}
        return self._call(self._attempt.step_all(in_threads))

    def note(self, text: str) -> None:
        """Writes a progress line."""
        self._call(self._attempt.note(text))

    def sleep(self, key: str, until: Time) -> None:
        """Waits until a time, as `Attempt.sleep` does."""
        self._call(self._attempt.sleep(key, until))

    def wait_for_event(self, key: str, name: str, until: Time | None = None) -> SignalledEvent | None:
        """Waits for an event, as `Attempt.wait_for_event` does."""
        return self._call(self._attempt.wait_for_event(key, name, until))

    def ask(self, key: str, question: Question | str, options: Sequence[str] = ()) -> Answer:
        """Asks a person, as `Attempt.ask` does."""
        return self._call(self._attempt.ask(key, question, options))

    def approve(
        self,
        key: str,
        action: str,
        arguments: Mapping[str, Any],
        text: str = "",
        schema: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Asks a person to approve an action, as `Attempt.approve` does."""
        return self._call(self._attempt.approve(key, action, arguments, text, schema))

    def ask_all(self, questions: Mapping[str, Question]) -> dict[str, Answer]:
        """Asks several questions at once, as `Attempt.ask_all` does."""
        return self._call(self._attempt.ask_all(questions))

    def delegate(self, key: str, task: ChildTask) -> Result | LostTask:
        """Delegates a task, as `Attempt.delegate` does."""
        return self._call(self._attempt.delegate(key, task))

    def delegate_all(self, key: str, tasks: Sequence[ChildTask]) -> list[Result | LostTask]:
        """Delegates tasks that run at once, as `Attempt.delegate_all` does."""
        return self._call(self._attempt.delegate_all(key, tasks))

    def read_input(self, input: Input) -> Result:
        """Returns the complete result of one of the order's inputs."""
        return self._call(self._attempt.read_input(input))

    def documents(self) -> list[Document]:
        """Returns the documents of the run."""
        return self._call(self._attempt.documents())

    def read_document(self, document: Document) -> bytes:
        """Returns the content of a document."""
        return self._call(self._attempt.read_document(document))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
