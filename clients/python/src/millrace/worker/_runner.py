"""One order, from its claim to its acknowledgement."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from ._attempt import Attempt
from ._blobs import BlobStore, BlobTooLarge
from ._capability import Capability
from ._cluster import REQUEST_TIME, Cluster, Fault, Fenced
from ._journal import Journal
from ._order import Order, parse_order
from ._order_check import OrderCheck
from ._result import Result, encode_result, result_of
from ._sync_attempt import SyncAttempt
from ._wire import BlobRef, NewerMessage, UnreadableMessage, blob_value, is_forged, open_envelope, unpack
from .errors import AttemptInterrupted, TaskError, WorkerFault

LOG = logging.getLogger("millrace.worker")
REDELIVERY_DELAY = 1.0
NEWER_ORDER_DELAY = 5.0
MAX_DELAY = 60.0


class Delivery:
    """An order that this worker has pulled, and the lease on it."""

    def __init__(self, cluster: Cluster, message: Msg) -> None:
        self._cluster = cluster
        self._message = message

    @property
    def subject(self) -> str:
        """The subject of the order."""
        return self._message.subject

    @property
    def sequence(self) -> int:
        """The sequence of the order in its stream."""
        return self._message.metadata.sequence.stream

    async def acknowledge(self) -> None:
        """Removes the order from the queue. If that is lost, the order is delivered again, and its journal has the end."""
        await self._send(b"+ACK")

    async def acknowledge_and_confirm(self) -> None:
        """The same, and waits until the order is removed, but not for long."""
        try:
            await self._cluster.nc.request(self._message.reply, b"+ACK", timeout=REQUEST_TIME)
        except (nats.errors.Error, OSError) as error:
            LOG.debug("an acknowledgement was not confirmed: %r", error)

    async def renew(self) -> None:
        """Renews the lease."""
        await self._send(b"+WPI")

    async def release(self, delay: float) -> None:
        """Returns the order to the queue, which delivers it again after a delay in seconds."""
        await self._send(b'-NAK {"delay": %d}' % int(delay * 1e9) if delay else b"-NAK")

    async def is_withdrawn(self) -> bool:
        """Returns `True` if the order is no longer in the queue."""
        reply = await self._cluster.call("STREAM.INFO.WORK", {"subjects_filter": self.subject})
        published = self._message.metadata.timestamp.isoformat()[:19]
        # A queue that was created after the order was published does not count.
        is_newer_queue = str(reply.get("created", ""))[:19] > published
        return not is_newer_queue and self.subject not in (reply["state"].get("subjects") or {})

    async def read_order(self) -> Order:
        """Reads the order."""
        headers: Mapping[str, str] = self._message.headers or {}
        if is_forged(headers):
            raise UnreadableMessage("the order is forged (no Millrace-Id header)")
        body = open_envelope(self._message.data, "order", headers)
        if isinstance(body, BlobRef):
            body = await BlobStore(self._cluster).get(body.sha256, body.size)
        order = parse_order(unpack(body, "the order") if isinstance(body, bytes) else body)
        order.check_address(self.subject, self._cluster.settings.lanes)
        return order

    async def _send(self, kind: bytes) -> None:
        try:
            await self._cluster.nc.publish(self._message.reply, kind)
        except (nats.errors.Error, OSError) as error:
            LOG.debug("sending an acknowledgement failed: %r", error)


class Runner:
    """Runs the attempt of one order."""

    def __init__(
        self,
        cluster: Cluster,
        check: OrderCheck,
        capability: Capability,
        worker: str,
        program: str,
        delivery: Delivery,
    ) -> None:
        self.delivery = delivery
        self.started = time.monotonic()
        self._cluster = cluster
        self._check = check
        self._capability = capability
        self._worker = worker
        self._program = program
        self._blobs = BlobStore(cluster)
        self._attempt: Attempt | None = None
        self._journal: Journal | None = None
        self._stop_reason: str | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, ended: Callable[[Runner], None]) -> None:
        """Starts the attempt; `ended` is called at its end."""
        self._task = asyncio.create_task(self._run_to_end())
        self._task.add_done_callback(lambda _: ended(self))

    def stop(self, reason: str) -> None:
        """Stops the attempt: `withdrawn` if nobody wants it, `draining` if another worker continues it. The first
        reason wins."""
        if self._stop_reason is None:
            self._stop_reason = reason
            if self._attempt is not None:
                self._attempt._cancel()
            if self._task is not None:
                self._task.cancel()

    async def _run_to_end(self) -> None:
        try:
            delay = await self._run()
        except asyncio.CancelledError:
            await asyncio.shield(self._end_stopped())
            return
        except BaseException:
            LOG.exception("running %s failed; returning it to the queue", self.delivery.subject)
            delay = REDELIVERY_DELAY
        if delay is not None:
            await self.delivery.release(delay)

    async def _end_stopped(self) -> None:
        if self._stop_reason == "withdrawn":
            await self.delivery.acknowledge()
            return
        if self._journal is not None:
            try:
                await asyncio.wait_for(self._journal.release_if_claimed("its worker stopped"), REQUEST_TIME)
            except (Fault, Fenced, asyncio.TimeoutError) as error:
                LOG.debug("recording the release failed; this claim counts as one without progress: %r", error)
        await self.delivery.release(0)

    async def _run(self) -> float | None:
        """Runs the attempt. Returns the delay after which its order is delivered again; `None` if it is not."""
        subject = self.delivery.subject
        try:
            order = await self.delivery.read_order()
            is_stale = await self._check.is_stale(order, self.delivery.sequence)
        except NewerMessage as error:
            LOG.warning("returning %s, an order of a newer release; upgrade this worker: %s", subject, error)
            return NEWER_ORDER_DELAY
        except (UnreadableMessage, BlobTooLarge) as error:
            LOG.warning("removing %s, an invalid order: %s", subject, error)
            await self.delivery.acknowledge()
            return None
        except Fault as error:
            LOG.warning("returning %s to the queue: %s", subject, error)
            return REDELIVERY_DELAY
        if is_stale:
            LOG.warning("removing %s: its decision is not in the log; the server has lost its newest messages", subject)
            await self.delivery.acknowledge()
            return None
        self._journal = journal = Journal(self._cluster, self._blobs, order, self._worker)
        try:
            if not await journal.claim(self._build()):
                await self.delivery.acknowledge()
                return None
        except Fenced:
            return None
        except Fault as error:
            LOG.warning("returning %s to the queue: %s", subject, error)
            return REDELIVERY_DELAY
        self._attempt = attempt = Attempt(self._cluster, self._blobs, journal, order, self._worker)
        LOG.info("%s started (claim %d)", subject, journal.claim_number)
        outcome = await self._call(attempt, order)
        return await self._end(attempt, journal, outcome)

    def _build(self) -> dict[str, Any]:
        build: dict[str, Any] = {"program": self._program}
        if self._capability.version is not None:
            build["capability"] = {"version": self._capability.version}
        return build

    async def _call(self, attempt: Attempt, order: Order) -> Result | BaseException:
        """Calls the capability. Returns its result, or the error that it raised."""
        try:
            if order.unsupported:
                raise TaskError(f"the task {order.unsupported}, which a worker in Python can't do", "invalid_task")
            arguments: Any = self._capability.bind(attempt, order.parameters)
            if self._capability.is_async:
                value = await self._capability.function(*arguments.args, **arguments.kwargs)
            else:
                value = await self._call_in_thread(attempt, arguments)
            return result_of(value)
        except asyncio.CancelledError as error:
            if self._stop_reason is not None:
                raise
            return error  # The capability has cancelled itself.
        except (Exception, AttemptInterrupted) as error:
            return error

    async def _call_in_thread(self, attempt: Attempt, arguments: Any) -> Any:
        """Calls a plain function in a thread of its own. A stopped one continues until it looks at its attempt."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        first, *rest = arguments.args
        blocking = SyncAttempt(attempt, loop)

        def settle(value: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def run() -> None:
            value: Any = None
            failure: BaseException | None = None
            try:
                value = self._capability.function(blocking, *rest, **arguments.kwargs)
            except StopIteration as error:
                failure = RuntimeError(f"the capability raised {error!r}")
            except BaseException as error:
                failure = error
            try:
                loop.call_soon_threadsafe(settle, value, failure)
            except RuntimeError:
                LOG.debug("the worker has stopped before a thread of %s", self._capability.name)

        threading.Thread(target=run, name=f"millrace-{self._capability.name}", daemon=True).start()
        return await future

    async def _end(self, attempt: Attempt, journal: Journal, outcome: Result | BaseException) -> float | None:
        """Records the end of the attempt."""
        subject = self.delivery.subject
        try:
            if isinstance(attempt._failure, Fenced):
                raise attempt._failure
            fault = attempt._failure or (outcome if isinstance(outcome, WorkerFault) else None)
            if fault is not None:
                LOG.warning("returning %s to the queue: %s", subject, fault)
                await journal.append_release(str(fault) or type(fault).__name__)
                return redelivery_delay(journal.release_count)
            if attempt._parking is not None:
                # First, because the supervisor offers the same work again, and the queue holds one order for it.
                await self.delivery.acknowledge_and_confirm()
                await journal.park(attempt._parking.waits, attempt._parking.children)
                LOG.info("%s parked", subject)
                return None
            await journal.append_outcome(await self._outcome_value(outcome))
        except Fenced:
            LOG.info("another worker has claimed %s; dropping it", subject)
            return None
        except Fault as error:
            LOG.warning("returning %s to the queue: %s", subject, error)
            return redelivery_delay(journal.release_count)
        await self.delivery.acknowledge()
        return None

    async def _outcome_value(self, outcome: Result | BaseException) -> dict[str, Any]:
        """Returns the outcome as the journal has it."""
        took = time.monotonic() - self.started
        if isinstance(outcome, Result):
            try:
                stored = await self._blobs.store_if_large(encode_result(outcome))
            except BlobTooLarge as error:
                outcome = TaskError(str(error))
            else:
                LOG.info("%s finished in %.3f s", self.delivery.subject, took)
                return {"Finished": {**outcome.outcome(), "result": blob_value(stored)}}
        if isinstance(outcome, TaskError):
            LOG.warning("%s failed after %.3f s: %s: %s", self.delivery.subject, took, outcome.kind, outcome.message)
            return {"Errored": outcome.to_wire()}
        LOG.warning("%s failed after %.3f s", self.delivery.subject, took, exc_info=outcome)
        text = f"{type(outcome).__name__}: {outcome}" if str(outcome) else type(outcome).__name__
        return {"Errored": TaskError(text).to_wire()}


def redelivery_delay(releases: int) -> float:
    """Returns the delay in seconds after this number of releases since the last step."""
    return float(min(2 ** min(releases, 10), MAX_DELAY))
