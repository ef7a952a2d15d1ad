"""The parser of event streams."""

from __future__ import annotations

import pytest

from millrace._sse import Message, StreamParser

STREAM = (
    ": hello\n\n"
    'id: 1.0\nevent: run_started\ndata: {"a": 1}\n\n'
    "event: delta\ndata: first\ndata:second\ndata:  third\n\n"
    "id: 2.0\nevent: step\ndata: ä€𝄞\n\n"
    "data\n\n"
    "event: no data\n\n"
    "unknown: field\nid: 3.0\n: comment\ndata: x: y\nretry: 10\n\n"
    "data: after\n\n"
)
MESSAGES = [
    Message("1.0", "run_started", '{"a": 1}'),
    Message(None, "delta", "first\nsecond\n third"),
    Message("2.0", "step", "ä€𝄞"),
    Message(None, "message", ""),
    Message("3.0", "message", "x: y"),
    Message(None, "message", "after"),
]


def parse(*chunks: bytes) -> list[Message]:
    parser = StreamParser()
    return [message for chunk in chunks for message in parser.feed(chunk)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
def test_stream_may_be_cut_at_every_byte(end: str, bom: bytes) -> None:
    data = bom + STREAM.replace("\n", end).encode()
    assert parse(data) == MESSAGES
    for cut in range(len(data) + 1):
        assert parse(data[:cut], data[cut:]) == MESSAGES, cut
        assert parse(data[:cut], b"", data[cut:]) == MESSAGES, cut
    assert parse(*(data[at : at + 1] for at in range(len(data)))) == MESSAGES


def test_unfinished_message_is_void() -> None:
    data = b"id: 1.0\ndata: one\n\nid: 2.0\ndata: two\n\n"
    for cut in range(len(data)):
        whole = 2 if cut == len(data) else int(cut >= data.index(b"id: 2.0"))
        assert len(parse(data[:cut])) == whole, cut


def test_line_ends_may_be_mixed() -> None:
    assert parse(b"data: a\r\ndata: b\rdata: c\n\r\n") == [Message(None, "message", "a\nb\nc")]


def test_mark_counts_only_at_the_beginning() -> None:
    assert parse(b"data: \xef\xbb\xbfa\n\n") == [Message(None, "message", "\ufeffa")]
    assert parse(b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n") == []


def test_ids_do_not_carry_over() -> None:
    assert [message.id for message in parse(b"id: 1.0\ndata: a\n\ndata: b\n\n")] == ["1.0", None]
    assert parse(b"id: a\0b\ndata: c\n\n") == [Message(None, "message", "c")]


def test_long_lines_take_linear_time() -> None:
    piece = b"x" * 1024
    parser = StreamParser()
    parser.feed(b"data: ")
    for _ in range(32 * 1024):
        assert parser.feed(piece) == []
    (message,) = parser.feed(b"\n\n")
    assert len(message.data) == 32 * 1024 * 1024
