"""A scripted HTTP server on this machine, whose connections can be cut at any byte."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RESET = struct.pack("ii", 1, 0)


@dataclass
class ReceivedRequest:
    """A request that the server has received."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """What the server writes, before it closes the connection."""

    bytes: bytes
    cut: int | None = None
    """The number of bytes that are written; `None` is all of them."""
    is_reset: bool = False
    """`True` if the connection is reset instead of closed."""


def response(status: int, body: Any, content_type: str = "application/json", **headers: str) -> bytes:
    """Returns a response with a body."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"content-type": content_type, "content-length": str(len(content)), "connection": "close", **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + content


def problem(status: int, name: str, detail: str = "why", **headers: str) -> bytes:
    """Returns a problem of the API."""
    body = {"type": f"urn:millrace:problem:{name}", "title": name, "status": status, "detail": detail}
    return response(status, body, "application/problem+json", **headers)


def stream_response(chunks: list[bytes], is_chunked: bool) -> bytes:
    """Returns an event stream, with or without the framing by which a cut is noticed."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
    if not is_chunked:
        return head + b"\r\n" + b"".join(chunks)
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks if chunk)
    return head + b"transfer-encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


class ScriptedServer:
    """Answers each request as `script` says, on a connection of its own."""

    def __init__(self, script: Callable[[ReceivedRequest], Reply | bytes]) -> None:
        self.script = script
        self.received: list[ReceivedRequest] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            request = read_request(connection)
            if request is None:
                return
            self.received.append(request)
            reply = self.script(request)
            reply = Reply(reply) if isinstance(reply, bytes) else reply
            try:
                connection.sendall(reply.bytes[: reply.cut])
            except OSError:
                return
            if reply.is_reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def read_request(connection: socket.socket) -> ReceivedRequest | None:
    """Reads a request; `None` if the client has closed the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += connection.recv(65536)
    return ReceivedRequest(method, target, headers, body)


class CuttingProxy:
    """Forwards connections to a port of this machine, and cuts most of them after a random number of bytes."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            # Later connections are not cut, so that every stream ends.
            limit = self._random.choice([100, 2_000, 20_000]) if self.connections < 20 else None
            cut = None if limit is None else self._random.randint(0, limit)
            is_reset = self._random.random() < 0.5
            threading.Thread(target=self._forward, args=[connection, cut, is_reset], daemon=True).start()

    def _forward(self, connection: socket.socket, cut: int | None, is_reset: bool) -> None:
        with connection, socket.create_connection(("127.0.0.1", self._port)) as gateway:
            try:
                gateway.sendall(connection.recv(65536))
                while data := gateway.recv(65536):
                    connection.sendall(data[:cut])
                    cut = None if cut is None else cut - len(data)
                    if cut is not None and cut <= 0:
                        break
            except OSError:
                return
            if is_reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
