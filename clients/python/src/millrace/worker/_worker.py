"""The worker: announces its capabilities, and serves their queues until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import nats.errors
from nats.aio.msg import Msg

from ._capability import Capability, define_capability
from ._cluster import Cluster, Fault, backoff, connect
from ._order_check import OrderCheck
from ._queue import Queue
from ._runner import Delivery, Runner
from ._settings import read_settings
from ._wire import UnreadableMessage, is_forged, is_name, unpack
from .errors import WorkerError

LOG = logging.getLogger("millrace.worker")
HEARTBEAT = 3.0
"""The interval of heartbeats in seconds."""
SHUTDOWN_TIME = 5.0
"""The time in seconds for a shutdown after the grace period."""
MAX_PROBLEM = 400
F = TypeVar("F", bound=Callable[..., Any])


class Worker:
    """A worker that provides Python functions as capabilities.

    `nats` is the URL of the NATS servers of the cluster. Without it, and without MILLRACE_NATS_URL, the worker joins
    the cluster of `millrace up` on this machine. Credentials are read from MILLRACE_NATS_NKEY or MILLRACE_NATS_CREDS
    (files), or MILLRACE_NATS_USER and MILLRACE_NATS_PASSWORD. `slots` is the number of concurrent attempts of each
    capability, `grace` the time in seconds for attempts in flight after the worker is asked to stop, and `program` the
    name of the program in journals.
    """

    def __init__(
        self,
        nats: str | None = None,
        *,
        slots: int = 8,
        id: str | None = None,
        grace: float = 20.0,
        program: str | None = None,
    ) -> None:
        if slots < 1:
            raise WorkerError("a worker needs at least one slot")
        self.id = id if id is not None else f"python-{uuid.uuid4().hex[:12]}"
        """The id of the worker, which no other process has."""
        if not is_name(self.id):
            raise WorkerError(f"{self.id!r} is no id of a worker: up to 64 letters, digits, '-' and '_'")
        self._url = nats
        self._slots = slots
        self._grace = grace
        self._program = program if program is not None else program_name(sys.argv[0])
        self._capabilities: dict[str, Capability] = {}
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def capability(
        self,
        name: str,
        description: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        output: Mapping[str, Any] | None = None,
        criteria: Sequence[str] = (),
        review: Any = None,
        version: str | None = None,
        slots: int | None = None,
    ) -> Callable[[F], F]:
        """Makes a function a capability: of the attempt, and of the parameters of a task by their names.

        A coroutine function gets an `Attempt` and runs in the event loop, a plain function gets a `SyncAttempt` and runs
        in a thread. `description` is for planners and users, by default the docstring. `parameters` is the JSON Schema
        of the parameters, by default that of the signature. `output` is the JSON Schema of the data of results,
        `criteria` are checked by critics in all of them, and `review` is their review if a task declares none.
        """

        def define(function: F) -> F:
            more = {"output": output, "criteria": criteria, "review": review, "version": version, "slots": slots}
            if name in self._capabilities:
                raise WorkerError(f"the capability {name} is defined twice; rename one of them")
            self._capabilities[name] = define_capability(function, name, description, parameters, **more)
            return function

        return define

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT; a second signal stops at once, like a crash."""
        if not logging.getLogger().handlers and not LOG.handlers:
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        asyncio.run(self._run_until_signal())

    async def _run_until_signal(self) -> None:
        loop = asyncio.get_running_loop()

        def handle(number: int) -> None:
            LOG.info("received %s; stopping", signal.Signals(number).name)
            loop.remove_signal_handler(number)
            self.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, handle, number)
            except NotImplementedError:
                break  # Windows: Ctrl-C raises KeyboardInterrupt.
        await self.serve()

    def stop(self) -> None:
        """Stops the worker: it pulls no more orders, and ends when none is in flight. Other threads can call it."""
        if self._stop is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    async def serve(self) -> None:
        """Serves until `stop` is called. Cancelling it is a crash: orders in flight are redelivered."""
        if not self._capabilities:
            raise WorkerError("the worker has no capability: define one with @worker.capability(…)")
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        problems = ProblemLog()
        LOG.addHandler(problems)
        cluster: Cluster | None = None
        try:
            opening = asyncio.ensure_future(connect(read_settings(self._url), self.id))
            await first_of(opening, self._stop.wait())
            if not opening.done():
                opening.cancel()
                return
            cluster = opening.result()
            await self._serve(Host(cluster, self.id, self._program, self._capabilities, self._slots, problems))
        finally:
            LOG.removeHandler(problems)
            if cluster is not None:
                await cluster.close()

    async def _serve(self, host: Host) -> None:
        assert self._stop is not None
        await host.register(self._stop)
        if self._stop.is_set():
            return
        names = ", ".join(self._capabilities)
        LOG.info("worker %s serves %s", self.id, names)
        background = [
            asyncio.create_task(work()) for work in (host.send_heartbeats, host.renew_leases, host.listen_for_stops)
        ]
        queues = asyncio.gather(*(queue.serve() for queue in host.queues))
        try:
            await first_of(queues, self._stop.wait())
            if not queues.done():
                await host.drain(queues, self._grace)
            await queues
        finally:
            queues.cancel()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
        await host.remove_heartbeat()


class Host:
    """The queues of a worker, and what they share: heartbeats, renewals and stop messages."""

    def __init__(
        self,
        cluster: Cluster,
        id: str,
        program: str,
        capabilities: Mapping[str, Capability],
        slots: int,
        problems: ProblemLog,
    ) -> None:
        self._cluster = cluster
        self._id = id
        self._problems = problems
        self._started = time.time_ns() // 1000
        check = OrderCheck(cluster)

        def make_queue(capability: Capability) -> Queue:
            def make_runner(delivery: Delivery) -> Runner:
                return Runner(cluster, check, capability, id, program, delivery)

            return Queue(cluster, capability, capability.slots or slots, make_runner)

        self.queues = [make_queue(capability) for capability in capabilities.values()]

    async def register(self, stop: asyncio.Event) -> None:
        """Announces the capabilities, and sends the first heartbeat."""
        tries = 0
        while not stop.is_set():
            try:
                for queue in self.queues:
                    await self._announce(queue)
                await self._send_heartbeat()
                return
            except Fault as error:
                tries += 1
                if tries == 5:
                    LOG.warning("announcing the capabilities failed; retrying: %s", error)
                await first_of(asyncio.ensure_future(asyncio.sleep(backoff(tries))), stop.wait())

    async def _announce(self, queue: Queue) -> None:
        capability = queue.capability
        await self._cluster.put_value("capabilities", capability.name, capability.description_value())

    async def send_heartbeats(self) -> None:
        """Sends heartbeats, and restores the entries of the capabilities after the server has lost them."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(HEARTBEAT)
            late = time.monotonic() - before - HEARTBEAT
            if late > self._cluster.settings.work_lease / 3:
                LOG.warning(
                    "the event loop was blocked for %.1f s; make capabilities that block plain functions, which run in "
                    "threads",
                    late,
                )
            try:
                await self._send_heartbeat()
                for queue in self.queues:
                    if not await self._is_announced(queue.capability.name):
                        await self._announce(queue)
            except Fault as error:
                LOG.debug("heartbeat failed: %s", error)

    async def _is_announced(self, name: str) -> bool:
        reply = await self._cluster.request(f"$JS.API.DIRECT.GET.KV_capabilities.$KV.capabilities.{name}", b"")
        return bool(reply.data)

    async def _send_heartbeat(self) -> None:
        busy = [(queue.capability.name, len(queue.in_flight)) for queue in self.queues]
        beat = {
            "id": self._id,
            "role": "worker",
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": self._started,
            "slots": [(queue.capability.name, queue.slots) for queue in self.queues],
            "busy": sum(count for _, count in busy),
            "busy_with": busy,
            "version": "1",
            "last_problem": self._problems.last,
        }
        await self._cluster.put_value("beats", f"worker.{self._id}", beat)

    async def remove_heartbeat(self) -> None:
        """Removes the heartbeat, so that nobody waits for this worker."""
        try:
            await self._cluster.delete_value("beats", f"worker.{self._id}")
        except Fault as error:
            LOG.debug("removing the heartbeat failed: %s", error)

    async def renew_leases(self) -> None:
        """Renews the leases of orders in flight. It also notices stop messages that were missed."""
        third = self._cluster.settings.work_lease / 3
        while True:
            await asyncio.sleep(third)
            due = [runner for runner in self._runners() if time.monotonic() - runner.started >= third]
            for runner in due:
                await runner.delivery.renew()
            for runner in due:
                try:
                    if await runner.delivery.is_withdrawn():
                        LOG.info("stopping %s: its order was withdrawn", runner.delivery.subject)
                        runner.stop("withdrawn")
                except (Fault, KeyError) as error:
                    LOG.debug("looking up an order failed: %r", error)

    def _runners(self) -> list[Runner]:
        return [runner for queue in self.queues for runner in queue.in_flight]

    async def listen_for_stops(self) -> None:
        """Stops the work that a supervisor does not want any more."""

        async def receive(message: Msg) -> None:
            self._handle_stop(message)

        try:
            await self._cluster.nc.subscribe("stop.*", cb=receive)
        except nats.errors.Error as error:
            LOG.warning("stop subscription failed; work is stopped at its next renewal: %r", error)

    def _handle_stop(self, message: Msg) -> None:
        if is_forged(message.headers or {}):
            LOG.warning("ignoring a forged stop message (no Millrace-Id header)")
            return
        try:
            work = unpack(message.data, "a stop message")
            ending = "" if work is None else stop_ending(work)
        except (UnreadableMessage, KeyError, TypeError) as error:
            LOG.warning("ignoring an invalid stop message: %s", error)
            return
        run = message.subject.removeprefix("stop.")
        for runner in self._runners():
            _, _, run_of_order, task_and_attempt = runner.delivery.subject.split(".", 3)
            if run_of_order == run and ending in ("", task_and_attempt):
                LOG.info("stopping %s on request", runner.delivery.subject)
                runner.stop("withdrawn")

    async def drain(self, queues: asyncio.Future[Any], grace: float) -> None:
        """Pulls no more orders, and waits for those in flight. What is left after the grace period is returned."""
        for queue in self.queues:
            queue.drain()
        await asyncio.wait({queues}, timeout=grace)
        for runner in self._runners():
            LOG.info("returning %s to the queue", runner.delivery.subject)
            runner.stop("draining")
        await asyncio.wait({queues}, timeout=SHUTDOWN_TIME)
        if not queues.done():
            LOG.warning("orders in flight were not returned in time; they are redelivered when their leases expire")
            queues.cancel()


class ProblemLog(logging.Handler):
    """Keeps the last warning or error, which heartbeats report."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last: dict[str, Any] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a line of the log."""
        level = "error" if record.levelno >= logging.ERROR else "warn"
        message = record.getMessage()[:MAX_PROBLEM]
        self.last = {"at": int(record.created * 1_000_000), "level": level, "message": message}


def program_name(path: str) -> str:
    """Returns the name of the program that runs, by the path of its file."""
    file = Path(path or "python")
    return file.parent.name if file.stem == "__main__" else file.stem


def stop_ending(work: Any) -> str:
    """Returns the end of the subject of a piece of work; a text that no subject has if it is none of a worker."""
    if "Task" not in work:
        return "."
    return f"{work['Task']['task']}.{work['Task']['attempt']}"


async def first_of(work: asyncio.Future[Any], stop: Any) -> None:
    """Waits until the work is done, or `stop`."""
    stopping = asyncio.ensure_future(stop)
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
