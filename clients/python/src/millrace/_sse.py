"""A parser of event streams (`text/event-stream`), by the rules of the HTML standard. Pure: bytes in, messages out."""

from __future__ import annotations

from dataclasses import dataclass

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Message:
    """A message of a stream."""

    id: str | None
    """Its id; `None` if it has none of its own."""
    name: str
    """Its name, from the field `event`; `message` if it has none."""
    data: str
    """The lines of its data."""


class StreamParser:
    """Splits a stream that arrives in pieces of any size into messages.

    A message is returned when its empty line has arrived, and not before: what a cut left unfinished is void. The
    field `retry` is ignored, since the client has delays of its own.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._is_start = True
        self._follows_cr = False
        self._id: str | None = None
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Message]:
        """Adds the next bytes of the stream, and returns the messages that are complete with them."""
        if self._follows_cr and chunk:
            # The last piece ended its line with a CR, and the LF of that end may be the first byte of this one.
            chunk = chunk.removeprefix(b"\n")
            self._follows_cr = False
        self._pieces.append(chunk)
        if not (self._is_start or b"\n" in chunk or b"\r" in chunk):
            # Long lines are joined once, not with each piece.
            return []
        buffer = b"".join(self._pieces)
        if self._is_start and len(buffer) < len(BOM) and BOM.startswith(buffer):
            return []
        if self._is_start:
            buffer = buffer.removeprefix(BOM)
            self._is_start = False
        self._follows_cr = buffer.endswith(b"\r") or (self._follows_cr and not chunk)
        *lines, rest = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._pieces = [rest]
        messages = [self._add_line(line.decode("utf-8", "replace")) for line in lines]
        return [message for message in messages if message is not None]

    def _add_line(self, line: str) -> Message | None:
        """Adds a line, and returns the message that it ends."""
        if not line:
            message = Message(self._id, self._name or "message", "\n".join(self._data))
            has_data = bool(self._data)
            self._id, self._name, self._data = None, "", []
            return message if has_data else None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "id" and "\0" not in value:
            self._id = value
        # A line that begins with a colon is a comment; fields with other names mean nothing.
        return None
