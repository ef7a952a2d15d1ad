"""The cluster on the other side of NATS: requests, fenced appends, reads of streams and buckets. It knows no rule."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from ._settings import ConnectionSettings
from ._wire import FORMAT, ID_HEADER, LAST_SEQUENCE_HEADER, describe_format, is_forged, parse_headers
from .errors import WorkerError

LOG = logging.getLogger("millrace.worker")
CONNECT_TIME = 20.0
"""The time in seconds for the first connection; a server that is lost later is waited for without a limit."""
REQUEST_TIME = 2.0
"""The time in seconds in which the server answers a request."""
RETRY_TIME = 60.0
"""The time in seconds for which an append is repeated while its outcome is unknown."""
LOG_AFTER = 12.0
READ_TRIES = 8
PAGE = 64
WRONG_LAST_SEQUENCE = 10071
NO_MESSAGE = 10037
NO_CONSUMER = 10014


class Fault(Exception):
    """The cluster did not do what was requested: it can't be reached, or it refuses."""


class ServerError(Fault):
    """The server refuses a request, with a code."""

    def __init__(self, what: str, error: Mapping[str, Any]) -> None:
        super().__init__(f"{what}: {error.get('description', error)}")
        self.code = error.get("err_code", 0)


class Fenced(Exception):
    """Another writer has appended to the subject."""

    def __init__(self, last: int) -> None:
        super().__init__(f"another writer was first: the last message has sequence {last}")
        self.last = last
        """The sequence of the last message; 0 if the subject was purged."""


@dataclass(frozen=True)
class StoredMessage:
    """A message of a stream."""

    sequence: int
    subject: str
    headers: dict[str, str]
    payload: bytes

    @property
    def is_forged(self) -> bool:
        """`True` if nobody published it to its subject."""
        return is_forged(self.headers)


@dataclass(frozen=True)
class ClusterSettings:
    """The settings of the cluster."""

    lanes: int
    replicas: int
    work_lease: float
    """The time in seconds after which an order that is not renewed is delivered again."""


class Cluster:
    """A connection to a cluster."""

    def __init__(self, nc: NatsClient, settings: ClusterSettings) -> None:
        self.nc = nc
        self.settings = settings

    async def close(self) -> None:
        """Closes the connection, after what was published has been sent."""
        try:
            await asyncio.wait_for(self.nc.flush(), REQUEST_TIME)
        except (nats.errors.Error, asyncio.TimeoutError, OSError) as error:
            LOG.debug("flush failed: %r", error)
        await self.nc.close()

    @property
    def server_id(self) -> str:
        """The id of the server; a restarted server has another one."""
        return str(self.nc._server_info.get("server_id", ""))

    async def request(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> Msg:
        """Sends a request and returns the reply."""
        try:
            return await self.nc.request(subject, payload, timeout=REQUEST_TIME, headers=headers)
        except (nats.errors.Error, OSError) as error:
            raise Fault(f"{subject}: {str(error) or type(error).__name__}") from error

    async def call(self, api: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Calls JetStream."""
        reply = await self.request(f"$JS.API.{api}", json.dumps(request).encode())
        return parse_reply(api, reply.data)

    async def publish(self, subject: str, payload: bytes, last: int | None = None, id: str | None = None) -> int:
        """Publishes a message to a stream once, and returns its sequence. `last` is the expected last sequence."""
        headers = {ID_HEADER: id or uuid.uuid4().hex}
        if last is not None:
            headers[LAST_SEQUENCE_HEADER] = str(last)
        reply = await self.request(subject, payload, headers)
        sequence = parse_reply(f"publishing to {subject}", reply.data)["seq"]
        return int(sequence)

    async def append(self, stream: str, subject: str, payload: bytes, last: int) -> int:
        """Appends a message if the last one of the subject has the sequence `last`, 0 for none.

        An append whose outcome is unknown is looked up by its id, and repeated for a minute.
        """
        id = uuid.uuid4().hex
        loop = asyncio.get_running_loop()
        started, tries, is_logged = loop.time(), 0, False
        while True:
            try:
                return await self.publish(subject, payload, last, id)
            except Fault as error:
                failure = error
            if not is_logged and loop.time() - started > LOG_AFTER:
                is_logged = True
                LOG.warning("the NATS server accepts no messages; retrying: %s", failure)
            found = await self._find_append(stream, subject, id, last)
            if found is not None:
                return found
            if loop.time() - started > RETRY_TIME:
                raise failure
            tries += 1
            await asyncio.sleep(backoff(tries))

    async def _find_append(self, stream: str, subject: str, id: str, last: int) -> int | None:
        """Returns the sequence of an append; `None` if it has not been written, as far as the server answers."""
        try:
            message = await self.read_message(stream, last_by_subj=subject)
        except Fault:
            return None
        if message is None:
            if last > 0:
                raise Fenced(0)
            return None
        if message.headers.get(ID_HEADER) == id:
            return message.sequence
        if message.sequence != last:
            raise Fenced(message.sequence)
        return None

    async def read_message(self, stream: str, **which: Any) -> StoredMessage | None:
        """Returns a message of a stream, as its leader has it; `None` if there is none."""
        try:
            reply = await self.call(f"STREAM.MSG.GET.{stream}", which)
        except ServerError as error:
            if error.code == NO_MESSAGE:
                return None
            raise
        message = reply["message"]
        headers = parse_headers(base64.b64decode(message.get("hdrs", "")))
        payload = base64.b64decode(message.get("data", ""))
        return StoredMessage(int(message["seq"]), message["subject"], headers, payload)

    async def read_subject(self, stream: str, subject: str, after: int = 0) -> AsyncIterator[StoredMessage]:
        """Returns the messages of a subject, oldest first, as the leader of the stream has them."""
        while True:
            message = await self._read_next(stream, subject, after + 1)
            if message is None:
                return
            yield message
            after = message.sequence

    async def _read_next(self, stream: str, subject: str, sequence: int) -> StoredMessage | None:
        tries = 0
        while True:
            try:
                return await self.read_message(stream, seq=sequence, next_by_subj=subject)
            except ServerError:
                raise
            except Fault:
                tries += 1
                if tries > READ_TRIES:
                    raise
                await asyncio.sleep(backoff(tries))

    async def read_matching(self, stream: str, subject: str) -> AsyncIterator[StoredMessage]:
        """Returns the messages of a subject, oldest first, from any replica; it may lag behind the leader."""
        sequence, tries = 1, 0
        while True:
            messages: list[StoredMessage] = []
            try:
                is_over = await self._read_page(stream, subject, sequence, messages)
            except (Fault, asyncio.TimeoutError) as error:
                tries += 1
                if tries > READ_TRIES:
                    raise Fault(f"reading {subject} of {stream}: {error or type(error).__name__}") from error
                is_over = False
                await asyncio.sleep(backoff(tries))
            for message in messages:
                sequence = message.sequence + 1
                yield message
            if is_over:
                return

    async def _read_page(self, stream: str, subject: str, sequence: int, messages: list[StoredMessage]) -> bool:
        """Adds the next messages; returns `True` if they are the last."""
        inbox = self.nc.new_inbox()
        request = json.dumps({"batch": PAGE, "seq": sequence, "next_by_subj": subject}).encode()
        try:
            replies = await self.nc.subscribe(inbox)
        except nats.errors.Error as error:
            raise Fault(f"reading {stream}: {error!r}") from error
        try:
            await self.nc.publish(f"$JS.API.DIRECT.GET.{stream}", request, reply=inbox)
            while True:
                message = await replies.next_msg(timeout=REQUEST_TIME + 1)
                headers = message.headers or {}
                if "Nats-Sequence" in headers:
                    stored = StoredMessage(
                        int(headers["Nats-Sequence"]), headers.get("Nats-Subject", ""), dict(headers), message.data
                    )
                    messages.append(stored)
                    continue
                status = headers.get("Status", "")
                if status == "404":
                    return True
                if status == "204":
                    return headers.get("Nats-Num-Pending", "0") == "0"
                raise Fault(f"reading {stream}: {headers.get('Description') or status or 'unexpected reply'}")
        except (nats.errors.Error, OSError) as error:
            raise Fault(f"reading {stream}: {str(error) or type(error).__name__}") from error
        finally:
            try:
                await replies.unsubscribe()
            except nats.errors.Error as error:
                LOG.debug("unsubscribe failed: %r", error)

    async def put_value(self, bucket: str, key: str, value: Any) -> None:
        """Writes a value of a bucket."""
        await self.publish(f"$KV.{bucket}.{key}", json.dumps(value).encode())

    async def delete_value(self, bucket: str, key: str) -> None:
        """Deletes a value of a bucket."""
        await self.request(f"$KV.{bucket}.{key}", b"", {"KV-Operation": "DEL", ID_HEADER: uuid.uuid4().hex})


def parse_reply(what: str, data: bytes) -> dict[str, Any]:
    """Returns a reply of JetStream."""
    try:
        reply = json.loads(data)
    except ValueError as error:
        raise Fault(f"{what}: the reply is unreadable") from error
    if not isinstance(reply, dict):
        raise Fault(f"{what}: the reply is unreadable")
    if reply.get("error"):
        raise ServerError(what, reply["error"])
    return reply


def backoff(tries: int) -> float:
    """Returns the delay in seconds after this number of failures."""
    return min(0.02 * float(2 ** min(tries - 1, 6)), 1.0)


async def connect(connection: ConnectionSettings, name: str) -> Cluster:
    """Connects to a cluster, and waits until a supervisor has created it."""

    async def report_error(error: Exception) -> None:
        # The server reports a missing permission on the connection, not as a reply.
        LOG.warning("NATS: %s", str(error) or type(error).__name__)

    async def report_reconnect() -> None:
        LOG.info("connected to NATS again")

    try:
        connecting = nats.connect(
            connection.servers,
            name=name,
            error_cb=report_error,
            reconnected_cb=report_reconnect,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,
            connect_timeout=5,
            ping_interval=10,
            **connection.options,
        )
        nc = await asyncio.wait_for(connecting, CONNECT_TIME)
    except Exception as error:  # The library raises errors of its own, of sockets and of nkeys.
        servers = ", ".join(connection.servers)
        raise WorkerError(f"can't connect to NATS at {servers}: {str(error) or type(error).__name__}") from error
    try:
        return Cluster(nc, await read_cluster_settings(nc))
    except BaseException:
        await nc.close()
        raise


async def read_cluster_settings(nc: NatsClient) -> ClusterSettings:
    """Reads the settings of the cluster, which its first supervisor writes."""
    cluster = Cluster(nc, ClusterSettings(1, 1, 15.0))
    tries = 0
    while True:
        try:
            message = await cluster.request("$JS.API.DIRECT.GET.KV_cluster.$KV.cluster.settings", b"")
            if message.data:
                settings = json.loads(message.data)
                break
        except Fault as error:
            LOG.debug("reading the settings of the cluster failed: %s", error)
        tries += 1
        if tries == 50:
            LOG.info("waiting for a supervisor to create the cluster")
        await asyncio.sleep(0.1)
    if settings.get("version") != FORMAT:
        raise WorkerError(f"this package can't join the cluster: {describe_format(settings.get('version', 0))}")
    return ClusterSettings(settings["lanes"], settings["replicas"], settings["work_lease_ms"] / 1000)
