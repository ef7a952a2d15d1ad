"""A client of Millrace's HTTP API.

    from millrace import Client

    with Client() as client:
        run = client.submit("How do these licences treat patents?", documents=["licences"])
        for event in run.events():
            print(event.type, event.task)
        print(run.report())

`AsyncClient` has the same methods, to be awaited.
"""

from ._aio import AsyncClient, AsyncEventStream, AsyncQuestion, AsyncRun
from ._follow import Event
from ._requests import answer_body
from ._retry import RetryPolicy
from ._sync import Client, EventStream, Question, Run
from ._verification import Verification
from .errors import GatewayUnreachable, MillraceError, ProblemError, Refused, StreamError, WaitTimeout

__all__ = [
    "AsyncClient",
    "AsyncEventStream",
    "AsyncQuestion",
    "AsyncRun",
    "Client",
    "Event",
    "EventStream",
    "GatewayUnreachable",
    "MillraceError",
    "ProblemError",
    "Question",
    "Refused",
    "RetryPolicy",
    "Run",
    "StreamError",
    "Verification",
    "WaitTimeout",
    "answer_body",
]
