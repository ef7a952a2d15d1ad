"""One request for orders of a queue."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ._cluster import REQUEST_TIME, Cluster, Fault

LOG = logging.getLogger("millrace.worker")
EXPIRES = 5
"""The time in seconds after which the request ends."""
HEARTBEAT = 1
"""The interval of the server's heartbeats in seconds."""
RESPONSE_TIME = 2.5
"""The time without an order or a heartbeat after which the request counts as lost."""
NANOSECONDS = 1_000_000_000


class Pull:
    """A request for up to `wanted` orders of a capability."""

    def __init__(self, cluster: Cluster, capability: str, wanted: int) -> None:
        self.missing = wanted
        """The number of orders that have not arrived."""
        self._cluster = cluster
        self._capability = capability
        self._messages: asyncio.Queue[Msg] = asyncio.Queue()
        self._replies: Subscription | None = None

    async def orders(self, draining: asyncio.Event) -> AsyncIterator[Msg]:
        """Returns the orders as they arrive, until the request ends or the queue is drained."""
        nc = self._cluster.nc
        inbox = nc.new_inbox()
        self._replies = await nc.subscribe(inbox, cb=self._receive)
        request = {"batch": self.missing, "expires": EXPIRES * NANOSECONDS, "idle_heartbeat": HEARTBEAT * NANOSECONDS}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.WORK.{self._capability}"
        await nc.publish(subject, json.dumps(request).encode(), reply=inbox)
        while self.missing > 0:
            message = await self._next_message(draining)
            if message is None:
                return
            if message.subject != inbox:
                self.missing -= 1
                yield message
                continue
            headers = message.headers or {}
            status = headers.get("Status", "")
            if status in ("404", "408"):
                return
            if status != "100":
                raise Fault(headers.get("Description") or status or "unexpected reply")

    async def _receive(self, message: Msg) -> None:
        self._messages.put_nowait(message)

    async def _next_message(self, draining: asyncio.Event) -> Msg | None:
        """Returns the next message; `None` if the queue is drained."""
        message = asyncio.ensure_future(self._messages.get())
        drained = asyncio.ensure_future(draining.wait())
        try:
            await asyncio.wait({message, drained}, timeout=RESPONSE_TIME, return_when=asyncio.FIRST_COMPLETED)
            if message.done():
                return message.result()
            if drained.done():
                return None
            raise Fault("no heartbeat")
        finally:
            message.cancel()
            drained.cancel()

    async def close(self) -> list[Msg]:
        """Ends the request, and returns orders that have arrived meanwhile."""
        if self._replies is not None:
            try:
                await asyncio.wait_for(self._replies.drain(), REQUEST_TIME)  # type: ignore[no-untyped-call]
            except (nats.errors.Error, asyncio.TimeoutError, OSError) as error:
                LOG.debug("ending a pull request failed: %r", error)
        inbox = "" if self._replies is None else self._replies.subject
        late = []
        while not self._messages.empty():
            message = self._messages.get_nowait()
            if message.subject != inbox:
                self.missing -= 1
                late.append(message)
        return late
