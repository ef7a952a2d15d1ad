"""The messages of the log: envelopes around MessagePack, as docs/wire.md describes them. Pure: bytes in, values out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

import msgpack  # type: ignore[import-untyped]

FORMAT = 3
"""The format of everything that this package reads and writes."""
MAX_INLINE = 256 * 1024
"""The maximum size of a body or a value in a message; larger ones go to the blob store."""
MAX_BLOB = 128 * 1024 * 1024
"""The maximum size of a blob."""
MAX_NAME = 64
ID_HEADER = "Millrace-Id"
LAST_SEQUENCE_HEADER = "Nats-Expected-Last-Subject-Sequence"
FNV_OFFSET, FNV_PRIME, MASK = 0xCBF29CE484222325, 0x100000001B3, 2**64 - 1


class UnreadableMessage(Exception):
    """A message that is not one of the log."""


class NewerMessage(Exception):
    """A message of a newer release."""


@dataclass(frozen=True)
class BlobRef:
    """The address of bytes in the blob store."""

    sha256: str
    size: int


Blob = Union[bytes, BlobRef]
"""Bytes, or their address."""


def pack(value: Any) -> bytes:
    """Encodes a value as MessagePack."""
    packed: bytes = msgpack.packb(value, unicode_errors="replace")
    return packed


def unpack(data: bytes, what: str) -> Any:
    """Decodes MessagePack."""
    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except Exception as error:  # The library raises many kinds of errors for bytes that are no MessagePack.
        raise UnreadableMessage(f"{what} is unreadable: {error or type(error).__name__}") from error


def envelope(kind: str, body: Blob) -> bytes:
    """Encodes the envelope around a body."""
    if isinstance(body, BlobRef):
        return pack({"v": FORMAT, "t": kind, "s": {"sha256": body.sha256, "size": body.size}})
    return pack({"v": FORMAT, "t": kind, "b": body})


def open_envelope(payload: bytes, kind: str, headers: Mapping[str, str]) -> Blob | dict[str, Any]:
    """Returns the body of a message: bytes of MessagePack, their address, or the value itself if it is JSON."""
    if headers.get("Millrace-Encoding") == "json":
        try:
            outer = json.loads(payload)
        except ValueError as error:
            raise UnreadableMessage(f"the envelope is unreadable: {error}") from error
    else:
        outer = unpack(payload, "the envelope")
    if not isinstance(outer, dict) or not isinstance(outer.get("v"), int):
        raise UnreadableMessage("the envelope has no format")
    if outer.get("t") != kind:
        raise UnreadableMessage(f"expected a message of type {kind!r}, found {outer.get('t')!r}")
    if outer["v"] < FORMAT:
        raise UnreadableMessage(describe_format(outer["v"]))
    if outer["v"] > FORMAT:
        raise NewerMessage(describe_format(outer["v"]))
    body, stored = outer.get("b"), outer.get("s")
    if isinstance(body, (bytes, dict)):
        return body
    return parse_blob_ref(stored, "the body")


def parse_blob_ref(stored: Any, what: str) -> BlobRef:
    """Returns the address of a blob."""
    if isinstance(stored, dict) and isinstance(stored.get("sha256"), str) and isinstance(stored.get("size"), int):
        return BlobRef(stored["sha256"], stored["size"])
    raise UnreadableMessage(f"{what} is missing")


def describe_format(found: int) -> str:
    """Returns why something of another format is not read."""
    formats = f"(format {found}; this release has format {FORMAT})"
    if found < FORMAT:
        return f"it was written by a release before 0.5 {formats}, and release 0.4.x can finish its runs"
    return f"it was written by a newer release {formats}; use that release"


def blob_value(blob: Blob) -> dict[str, Any]:
    """Returns a value of an entry."""
    if isinstance(blob, BlobRef):
        return {"Stored": {"sha256": blob.sha256, "size": blob.size}}
    return {"Inline": blob}


def parse_blob_value(value: Any) -> Blob:
    """Returns the value of an entry, inline or stored. JSON writers have bytes as text or as a list of numbers."""
    inline = value.get("Inline") if isinstance(value, dict) else None
    if isinstance(inline, str):
        return inline.encode()
    if isinstance(inline, list):
        return bytes(inline)
    if isinstance(inline, bytes):
        return inline
    return parse_blob_ref(value.get("Stored") if isinstance(value, dict) else None, "the value")


def is_forged(headers: Mapping[str, str]) -> bool:
    """Returns `True` if a message is a reply of the server that was redirected to its subject."""
    return "Nats-Stream" in headers or not (ID_HEADER in headers or "Nats-Msg-Id" in headers)


def parse_headers(raw: bytes) -> dict[str, str]:
    """Returns the headers of a stored message."""
    headers = {}
    for line in raw.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.decode("utf-8", "replace").strip()] = value.decode("utf-8", "replace").strip()
    return headers


def fnv1a(text: str) -> int:
    """Returns the FNV-1a hash with 64 bits of a text."""
    digest = FNV_OFFSET
    for byte in text.encode():
        digest = ((digest ^ byte) * FNV_PRIME) & MASK
    return digest


def is_name(text: Any) -> bool:
    """Returns `True` if a text can be the name of a capability, a run, a task or a worker."""
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_NAME or not text.isascii():
        return False
    return text[0].isalnum() and all(letter.isalnum() or letter in "-_" for letter in text)


def child_id(task: str, attempt: int, call: str) -> str:
    """Returns the id of a delegated task: the same for the same task, attempt and call."""
    whole = f"{task}-{attempt}-{call}"
    return whole if is_name(whole) else f"{task[: MAX_NAME - 17]}-{fnv1a(whole):016x}"


def question_digest(*parts: str) -> str:
    """Returns the digest of a question: SHA-256 over its parts, each after its length."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def dump_json(value: Any, what: str) -> str:
    """Returns a value as JSON text."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} can't be written as JSON: {error}") from error
