"""The queue of one capability: pulls as many orders as slots are free, and runs each in a slot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import nats.errors
from nats.aio.msg import Msg

from ._capability import Capability
from ._cluster import NO_CONSUMER, Cluster, Fault, ServerError, backoff
from ._pull import Pull
from ._runner import Delivery, Runner

LOG = logging.getLogger("millrace.worker")
POLL_INTERVAL = 0.05
POLLS_BEFORE_LOG = 100
TRIES_BEFORE_LOG = 10


class Queue:
    """The queue of a capability, and its orders in flight."""

    def __init__(
        self, cluster: Cluster, capability: Capability, slots: int, make_runner: Callable[[Delivery], Runner]
    ) -> None:
        self.capability = capability
        self.slots = slots
        self.in_flight: set[Runner] = set()
        self._cluster = cluster
        self._make_runner = make_runner
        self._free = slots
        self._changed = asyncio.Event()
        self._draining = asyncio.Event()
        self._pulls: set[asyncio.Task[None]] = set()
        self._tries = 0

    def drain(self) -> None:
        """Pulls no more orders."""
        self._draining.set()
        self._changed.set()

    async def serve(self) -> None:
        """Pulls orders until the queue is drained and nothing is in flight."""
        await self._wait_for_queue()
        while not self._draining.is_set():
            if self._free > 0:
                wanted, self._free = self._free, 0
                pull = asyncio.create_task(self._pull(wanted))
                self._pulls.add(pull)
                pull.add_done_callback(self._end_pull)
            await self._wait_for_change()
        while self._pulls or self.in_flight:
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def _wait_for_queue(self) -> None:
        """Waits until a supervisor has created the queue; it does so about a second after the announcement."""
        tries = 0
        while not self._draining.is_set():
            try:
                await self._cluster.call(f"CONSUMER.INFO.WORK.{self.capability.name}", {})
                return
            except ServerError as error:
                if error.code != NO_CONSUMER:
                    LOG.warning("the queue of %s can't be used: %s", self.capability.name, error)
            except Fault as error:
                LOG.debug("looking up the queue failed: %s", error)
            tries += 1
            if tries == POLLS_BEFORE_LOG:
                LOG.info("waiting for a supervisor to create the queue of %s", self.capability.name)
            await asyncio.sleep(POLL_INTERVAL)

    async def _pull(self, wanted: int) -> None:
        """Sends one request for orders, and runs those that arrive. The slots of others become free again."""
        pull = Pull(self._cluster, self.capability.name, wanted)
        try:
            async for message in pull.orders(self._draining):
                self._run(message)
            self._tries = 0
        except (Fault, nats.errors.Error, OSError) as error:
            self._tries += 1
            if self._tries == TRIES_BEFORE_LOG:
                LOG.warning("the queue of %s does not respond; retrying: %r", self.capability.name, error)
            await asyncio.sleep(backoff(self._tries))
        finally:
            for message in await pull.close():
                self._run(message)
            self._free += pull.missing

    def _end_pull(self, pull: asyncio.Task[None]) -> None:
        self._pulls.discard(pull)
        self._changed.set()
        if not pull.cancelled() and (error := pull.exception()) is not None:
            LOG.error("pulling orders of %s failed", self.capability.name, exc_info=error)

    def _run(self, message: Msg) -> None:
        """Runs an order in a slot that the request has reserved."""
        delivery = Delivery(self._cluster, message)
        runner = self._make_runner(delivery)
        if not delivery.subject.startswith(f"work.{self.capability.name}."):
            # After a power loss the server may deliver an order of another queue. Its own queue delivers it too.
            LOG.warning("leaving %s to the queue of its capability", delivery.subject)
            self._free += 1
            return
        self.in_flight.add(runner)
        runner.start(self._end_runner)
        if self._draining.is_set():
            runner.stop("draining")

    def _end_runner(self, runner: Runner) -> None:
        self.in_flight.discard(runner)
        self._free += 1
        self._changed.set()
