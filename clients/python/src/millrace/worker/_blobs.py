"""The blob store: values that are too large for a message, by their SHA-256."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
import uuid
from typing import Any

from ._cluster import WRONG_LAST_SEQUENCE, Cluster, Fault, ServerError, backoff
from ._wire import MAX_BLOB, MAX_INLINE, Blob, BlobRef

PART_SIZE = 128 * 1024
MAX_DESCRIPTIONS = 10
STORE_TRIES = 20
LAG = 10.0
"""The time in seconds after which a blob of a replicated store counts as missing."""


class BlobTooLarge(Exception):
    """A value that is larger than any blob may be."""


class BlobMissing(Fault):
    """A blob that is missing, incomplete or damaged."""


class BlobStore:
    """The blobs of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def store_if_large(self, data: bytes) -> Blob:
        """Stores bytes that are too large for a message, and returns their address; returns others as they are."""
        return data if len(data) <= MAX_INLINE else await self.put(data)

    async def read(self, blob: Blob) -> bytes:
        """Returns the bytes of a value."""
        return blob if isinstance(blob, bytes) else await self.get(blob.sha256, blob.size)

    async def put(self, data: bytes) -> BlobRef:
        """Stores bytes, unless they are stored already."""
        if len(data) > MAX_BLOB:
            raise BlobTooLarge(f"a value of {len(data)} bytes is too large; at most {MAX_BLOB} are possible")
        digest = hashlib.sha256(data)
        reference = BlobRef(digest.hexdigest(), len(data))
        for tries in range(1, STORE_TRIES + 1):
            descriptions = await self._descriptions(reference.sha256)
            if descriptions and await self._is_stored(reference):
                return reference
            last = descriptions[-1][0] if descriptions else 0
            if await self._write(reference, data, digest.digest(), last):
                return reference
            await asyncio.sleep(backoff(tries))
        raise Fault(f"storing blob {reference.sha256}: other processes keep storing it")

    async def _is_stored(self, reference: BlobRef) -> bool:
        try:
            await self._try_get(reference.sha256, reference.size)
        except Fault:
            return False
        return True

    async def _write(self, reference: BlobRef, data: bytes, digest: bytes, last: int) -> bool:
        """Writes a blob. Returns `False` if another process has described it meanwhile."""
        nuid = uuid.uuid4().hex
        parts = [data[start : start + PART_SIZE] for start in range(0, len(data), PART_SIZE)]
        for part in parts:
            # One after the other: parts are joined in the order of their sequences.
            await self._cluster.publish(f"$O.blobs.C.{nuid}", part)
        description = {
            "name": reference.sha256,
            "bucket": "blobs",
            "nuid": nuid,
            "size": len(data),
            "chunks": len(parts),
            "digest": "SHA-256=" + base64.urlsafe_b64encode(digest).decode(),
        }
        try:
            await self._cluster.publish(description_subject(reference.sha256), json.dumps(description).encode(), last)
        except ServerError as error:
            if error.code == WRONG_LAST_SEQUENCE:
                return False
            raise
        return True

    async def get(self, sha256: str, size: int | None = None) -> bytes:
        """Returns a blob."""
        if len(sha256) != 64 or not sha256.isalnum() or not sha256.isascii():
            raise BlobMissing(f"{sha256[:80]!r} is no name of a blob")
        if size is not None and size > MAX_BLOB:
            raise BlobTooLarge(f"blob {sha256} has {size} bytes; at most {MAX_BLOB} are read")
        lag = LAG if self._cluster.settings.replicas > 1 else 0.0
        started, tries = time.monotonic(), 0
        while True:
            try:
                return await self._try_get(sha256, size)
            except Fault:
                tries += 1
                if time.monotonic() - started >= lag:
                    raise
                await asyncio.sleep(backoff(tries))

    async def _try_get(self, sha256: str, size: int | None) -> bytes:
        found = [description for _, description in await self._descriptions(sha256)]
        fitting = [one for one in found if not one.get("deleted") and is_readable(one, size)]
        for description in fitting[:MAX_DESCRIPTIONS]:
            content = bytearray()
            async for part in self._cluster.read_matching("OBJ_blobs", f"$O.blobs.C.{description['nuid']}"):
                content += part.payload
                if len(content) >= description["size"]:
                    break
            data = bytes(content[: description["size"]])
            if hashlib.sha256(data).hexdigest() == sha256:
                return data
        raise BlobMissing(f"blob {sha256} is missing, incomplete or damaged")

    async def _descriptions(self, sha256: str) -> list[tuple[int, dict[str, Any]]]:
        """Returns all descriptions of a blob with their sequences, oldest first."""
        descriptions = []
        async for message in self._cluster.read_matching("OBJ_blobs", description_subject(sha256)):
            try:
                description = json.loads(message.payload)
            except ValueError:
                description = {}
            descriptions.append((message.sequence, description if isinstance(description, dict) else {}))
        return descriptions


def is_readable(description: dict[str, Any], size: int | None) -> bool:
    """Returns `True` if a blob can be read by this description."""
    nuid, actual = description.get("nuid"), description.get("size")
    if not isinstance(nuid, str) or not nuid.isalnum() or not isinstance(actual, int):
        return False
    return actual <= MAX_BLOB if size is None else actual == size


def description_subject(sha256: str) -> str:
    """Returns the subject of the descriptions of a blob."""
    return "$O.blobs.M." + base64.urlsafe_b64encode(sha256.encode()).decode()
