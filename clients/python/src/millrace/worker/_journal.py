"""The journal of an attempt: a chain of entries with one writer. Each append names the entry before it, so that of two
workers that both believe to hold the claim one continues, and the append of the other fails."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from ._blobs import BlobStore
from ._cluster import Cluster, Fenced, StoredMessage
from ._order import Order
from ._wire import (
    MAX_INLINE,
    Blob,
    BlobRef,
    NewerMessage,
    UnreadableMessage,
    blob_value,
    envelope,
    open_envelope,
    pack,
    parse_blob_value,
    unpack,
)

LOG = logging.getLogger("millrace.worker")
MAX_CLAIMS = 5
"""The number of claims in a row without progress, after which the work counts as one that crashes its workers."""
MAX_MESSAGE = 4_000


class JournalState:
    """The state of a journal: the fold of its entries. Pure."""

    def __init__(self, ended_waits: Iterable[str]) -> None:
        self._ended_waits = frozenset(ended_waits)
        self.last = 0
        """The sequence of the last message."""
        self.claims = 0
        self.claims_without_progress = 0
        self.releases = 0
        """The number of releases since the last step."""
        self.recorded: deque[tuple[str, Blob]] = deque()
        """The steps, by name, that are not replayed yet."""
        self.is_done = False
        """`True` if there is an outcome."""
        self.is_parked = False
        """`True` if the attempt waits for something that has not ended by the order."""
        self.claimant: str | None = None

    def add(self, entry: Mapping[str, Any]) -> None:
        """Adds an entry."""
        kind, fields = next(iter(entry.items()))
        if kind == "Claimed":
            self.claims, self.claims_without_progress = self.claims + 1, self.claims_without_progress + 1
            self.is_parked, self.claimant = False, fields["worker"]
        elif kind == "Step":
            self.recorded.append((fields["name"], parse_blob_value(fields["value"])))
            self.claims_without_progress = self.releases = 0
        elif kind == "Parked":
            self.is_parked = any(wait["key"] not in self._ended_waits for wait in fields["waits"])
            self.claims_without_progress, self.releases, self.claimant = 0, 0, None
        elif kind == "Delegated":
            self.claims_without_progress = self.releases = 0
        elif kind == "Released":
            self.claims_without_progress = max(0, self.claims_without_progress - 1)
            self.releases, self.claimant = self.releases + 1, None
        elif kind == "Outcome":
            self.is_done, self.claimant = True, None
        # A note changes nothing, and neither does an entry of a kind that a newer release added.


class Journal:
    """The journal of an attempt."""

    def __init__(self, cluster: Cluster, blobs: BlobStore, order: Order, worker: str) -> None:
        self._cluster = cluster
        self._blobs = blobs
        self._order = order
        self._worker = worker
        self._lock = asyncio.Lock()
        self._state = JournalState(order.ended_waits)
        self._replayed = 0

    @property
    def claim_number(self) -> int:
        """The number of this claim, from 1."""
        return self._state.claims

    @property
    def release_count(self) -> int:
        """The number of releases since the last step."""
        return self._state.releases

    async def claim(self, build: Mapping[str, Any]) -> bool:
        """Claims the attempt. Returns `False` if there is nothing to do for the order but its acknowledgement."""
        # The journal of an attempt that was parked is not empty; of others the first claim takes one append.
        if self._order.ended_waits and not await self._read():
            return False
        while True:
            entry = {"Claimed": {"worker": self._worker, "claim": self._state.claims + 1, "build": build}}
            try:
                await self.append(entry)
                break
            except Fenced as error:
                if error.last == 0:
                    return False  # The journal was purged: the run has ended.
            if not await self._read():
                return False
        self._state.add(entry)
        if self._state.claims_without_progress > MAX_CLAIMS:
            await self._abandon()
            return False
        if self._state.claims > 1:
            steps = len(self._state.recorded)
            LOG.info("continuing %s: claim %d, %d steps", self._order.journal, self._state.claims, steps)
        return True

    async def _read(self) -> bool:
        """Reads the journal. Returns `False` if the attempt is done, or still waits."""
        self._state = await self._read_state()
        return not (self._state.is_done or self._state.is_parked)

    async def _read_state(self) -> JournalState:
        state = JournalState(self._order.ended_waits)
        async for message in self._cluster.read_subject(self._order.stream, self._order.journal):
            state.last = message.sequence
            if message.is_forged:
                LOG.warning("ignoring a forged message of %s", self._order.journal)
                continue
            try:
                state.add(await self._decode(message))
            except (UnreadableMessage, KeyError, TypeError, StopIteration) as error:
                LOG.warning("ignoring an invalid entry of %s: %r", self._order.journal, error)
        return state

    async def _decode(self, message: StoredMessage) -> dict[str, Any]:
        try:
            body = open_envelope(message.payload, "entry", message.headers)
        except NewerMessage as error:
            raise UnreadableMessage(str(error)) from error
        if isinstance(body, BlobRef):
            body = await self._blobs.get(body.sha256, body.size)
        entry = unpack(body, "the entry") if isinstance(body, bytes) else body
        if not isinstance(entry, dict):
            raise UnreadableMessage("the entry is no map")
        return entry

    async def _abandon(self) -> None:
        reason = "workers in a row claimed this work and were lost before its next step; it may be crashing them"
        message = f"{MAX_CLAIMS} {reason}"
        LOG.warning("abandoning %s: %s", self._order.journal, message)
        await self.append_outcome({"Errored": {"kind": "abandoned", "message": message}})

    def next_recorded(self) -> tuple[str, Blob] | None:
        """Returns the next step that an earlier claim has recorded; `None` after the last."""
        return self._state.recorded[0] if self._state.recorded else None

    def take_recorded(self) -> None:
        """Marks the next recorded step as replayed."""
        self._state.recorded.popleft()
        self._replayed += 1

    @property
    def position(self) -> int:
        """The number of steps that were replayed or recorded by this claim."""
        return self._replayed

    async def append_step(self, name: str, value: bytes) -> None:
        """Records a step."""
        blob = await self._blobs.store_if_large(value)

        async def append() -> None:
            async with self._lock:
                await self._append({"Step": {"number": self._replayed + 1, "name": name, "value": blob_value(blob)}})
                self._replayed += 1

        await asyncio.shield(append())

    async def append_note(self, text: str) -> None:
        """Appends a note."""
        await self.append({"Note": {"text": text}})

    async def append_outcome(self, outcome: Mapping[str, Any]) -> None:
        """Appends the outcome."""
        await self.append({"Outcome": {"worker": self._worker, "outcome": outcome}})

    async def append_release(self, why: str) -> None:
        """Releases the claim: it does not count against the work."""
        await self.append({"Released": {"worker": self._worker, "why": why[:MAX_MESSAGE]}})

    async def park(self, waits: list[dict[str, Any]], children: list[dict[str, Any]]) -> None:
        """Parks the attempt until all of these waits have ended."""
        await self.append({"Parked": {"worker": self._worker, "waits": waits, "children": children}})

    async def release_if_claimed(self, why: str) -> None:
        """Releases the claim of this worker after its attempt was cancelled in the middle of an append."""
        async with self._lock:
            self._state = await self._read_state()
        if self._state.claimant == self._worker:
            await self.append_release(why)

    async def append(self, entry: Mapping[str, Any]) -> None:
        """Appends an entry. An append that has begun is carried out even if its caller is cancelled: otherwise the
        next one would not know the last sequence."""
        await asyncio.shield(self._append_in_turn(entry))

    async def _append_in_turn(self, entry: Mapping[str, Any]) -> None:
        async with self._lock:
            await self._append(entry)

    async def _append(self, entry: Mapping[str, Any]) -> None:
        body = pack(entry)
        blob: Blob = body if len(body) <= MAX_INLINE else await self._blobs.put(body)
        payload = envelope("entry", blob)
        self._state.last = await self._cluster.append(
            self._order.stream, self._order.journal, payload, self._state.last
        )
