"""Detects stale orders, whose decision is not in the log: after a power loss, a server may have kept an order and lost
the decision behind it. Only orders that were in the queues when this worker connected to its server can be stale."""

from __future__ import annotations

import asyncio

from ._blobs import BlobStore
from ._cluster import Cluster
from ._order import Order
from ._wire import BlobRef, NewerMessage, UnreadableMessage, open_envelope, unpack

MAX_REMEMBERED = 10_000


class OrderCheck:
    """Checks whether orders are stale."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = asyncio.Lock()
        self._server = ""
        self._last_old_sequence = 0
        self._found: set[tuple[str, int, int]] = set()

    async def is_stale(self, order: Order, sequence: int) -> bool:
        """Returns `True` if the log does not contain the decision that the order names."""
        if order.decided is None:
            return False
        async with self._lock:
            server = self._cluster.server_id
            if server != self._server:
                info = await self._cluster.call("STREAM.INFO.WORK", {})
                self._server, self._last_old_sequence = server, info["state"]["last_seq"]
                self._found.clear()
            key = (order.run, *order.decided)
            if sequence > self._last_old_sequence or key in self._found:
                return False
            is_in_log = await self._has_decision(order, *order.decided)
            if is_in_log and len(self._found) < MAX_REMEMBERED:
                self._found.add(key)
            return not is_in_log

    async def _has_decision(self, order: Order, sequence: int, at: int) -> bool:
        """Returns `True` if the log has this decision of the run. One that can't be decoded counts."""
        message = await self._cluster.read_message(order.stream, seq=sequence)
        if message is None or message.is_forged or message.subject != f"lane.{order.lane}.run.{order.run}.plan":
            return False
        try:
            body = open_envelope(message.payload, "decision", message.headers)
            if isinstance(body, BlobRef):
                body = await BlobStore(self._cluster).get(body.sha256, body.size)
            decision = unpack(body, "the decision") if isinstance(body, bytes) else body
            return bool(decision["at"] == at)
        except (UnreadableMessage, NewerMessage, KeyError, TypeError):
            return True
