"""Both clients behind one interface, so that each test can run with both."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace import AsyncClient, Client, Event, RetryPolicy

FAST = RetryPolicy(first_delay=0.001, max_delay=0.01, request_time=10.0, stream_time=10.0)
both = pytest.mark.parametrize("kind", ["sync", "async"])


def call(kind: str, url: str, path: str, *arguments: Any, retry: RetryPolicy = FAST, **options: Any) -> Any:
    """Calls a method of a client, or one of a run, such as `run.pause`, whose first argument is the id of the run."""
    owner, _, method = path.rpartition(".")

    def target(client: Any) -> Any:
        return getattr(getattr(client, owner)(arguments[0]), method) if owner else getattr(client, method)

    arguments_left = arguments[1:] if owner else arguments
    if kind == "sync":
        with Client(url, retry=retry) as client:
            result = target(client)(*arguments_left, **options)
            return list(result) if hasattr(result, "__next__") else result

    async def run() -> Any:
        async with AsyncClient(url, retry=retry) as client:
            result = target(client)(*arguments_left, **options)
            if hasattr(result, "__anext__"):
                return [item async for item in result]
            return await result

    return asyncio.run(run())


def read_events(kind: str, url: str, run: str = "r", **options: Any) -> list[Event]:
    """Reads all events of a run."""
    events: list[Event] = call(kind, url, "run.events", run, **options)
    return events
