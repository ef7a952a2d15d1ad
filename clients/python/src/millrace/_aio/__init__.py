"""The asynchronous client. `millrace/_sync` is generated from this package by scripts/generate_sync.py."""

from .client import AsyncClient
from .question import AsyncQuestion
from .run import AsyncRun
from .stream import AsyncEventStream

__all__ = ["AsyncClient", "AsyncEventStream", "AsyncQuestion", "AsyncRun"]
