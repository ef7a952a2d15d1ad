"""The clock of the client."""

from asyncio import sleep as async_sleep
from time import monotonic, sleep

__all__ = ["async_sleep", "monotonic", "sleep"]
