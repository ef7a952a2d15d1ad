"""The requests of the API as values. Pure but for documents, which are read from their files."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Union
from urllib.parse import quote

from .types import AnswerBody, AnswerScope, BatchItem, Consult, DocumentReference, Mode, PushConfigBody, VerificationPolicy

Document = Union[str, "os.PathLike[str]", "tuple[str, bytes]", DocumentReference]
"""A document of a run: a file, a folder, a name with its content, or a blob of the store with its path."""
Level = Literal["decisions", "steps", "live"]
ReportFormat = Literal["markdown", "html", "json"]
WaitFor = Literal["decided", "accepted"]

REPORT_TYPES: dict[ReportFormat, str] = {
    "markdown": "text/markdown",
    "html": "text/html",
    "json": "application/json",
}
UNSET: Any = object()
"""The default of arguments for which `None` is a value."""
MAX_PAGE = 1_000
"""The maximum number of runs in a part of the list."""
MAX_BATCH = 1_000
"""The maximum number of answers in a batch."""
DECISION_TIME = 10
"""The time in seconds that the gateway waits for a decision if the client does not choose one."""


@dataclass(frozen=True)
class Request:
    """A request."""

    method: str
    path: str
    """The path below `/api/v1`, with its parts quoted."""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    """The body as JSON; `None` is no body."""
    documents: tuple[tuple[str, bytes], ...] = ()
    """The documents; with them the body is sent as the part `run` of a form."""
    accept: str = "application/json"
    key: str | None = None
    """The idempotency key."""
    server_time: float = 0.0
    """The time in seconds that the gateway may take by itself, because the request waits for something."""

    @property
    def can_be_repeated(self) -> bool:
        """`True` if a repetition has no further effect."""
        return self.method == "GET" or self.key is not None


def quote_part(part: str) -> str:
    """Quotes a part of a path."""
    return quote(part, safe="")


def quote_parts(path: str) -> str:
    """Quotes a path whose slashes are part of the path of the request."""
    return quote(path, safe="/")


def quote_file(path: str) -> str:
    """Quotes the path of a file, which may begin with a slash as in the list of files."""
    return quote_parts(path.lstrip("/"))


def list_of(values: str | Iterable[str] | None) -> str | None:
    """Returns values separated by commas; `None` selects everything."""
    return values if values is None or isinstance(values, str) else ",".join(values)


def query_of(**values: str | int | None) -> dict[str, str]:
    """Returns the parameters that have a value."""
    return {name: str(value) for name, value in values.items() if value is not None}


def body_of(**values: Any) -> dict[str, Any]:
    """Returns the fields that have a value."""
    return {name: value for name, value in values.items() if value is not None}


def submission(
    objective: str | None,
    plan: str | Mapping[str, Any] | os.PathLike[str] | None,
    documents: Iterable[Document],
    mode: Mode | None,
    consult: Consult | None,
    budget: Mapping[str, Any] | None,
    fail_fast: bool,
    approve_plan: bool,
    verification: VerificationPolicy | None,
    criteria: Iterable[str],
    models: Iterable[str],
    after: Iterable[str],
    labels: Mapping[str, str] | None,
    session: str | None,
    push_config: PushConfigBody | None,
    key: str | None,
) -> Request:
    """Returns the request that submits a run."""
    uploads, references = read_documents(documents)
    body = body_of(
        objective=objective,
        plan=Path(plan).read_text(encoding="utf-8") if isinstance(plan, os.PathLike) else plan,
        mode=mode,
        consult=consult,
        budget=budget,
        fail_fast=fail_fast or None,
        approve_plan=approve_plan or None,
        verification=verification,
        criteria=list(criteria) or None,
        models=list(models) or None,
        after=list(after) or None,
        labels=dict(labels or {}) or None,
        session=session,
        documents=references or None,
        push_config=push_config,
    )
    return Request("POST", "/runs", body=body, documents=tuple(uploads), key=key or new_key())


def verification(
    text: str,
    documents: Iterable[Document],
    models: Iterable[str],
    budget: Mapping[str, Any] | None,
    after: Iterable[str],
    labels: Mapping[str, str] | None,
    session: str | None,
    key: str | None,
) -> Request:
    """Returns the request that verifies a text."""
    uploads, references = read_documents(documents)
    body = body_of(
        text=text,
        models=list(models) or None,
        budget=budget,
        after=list(after) or None,
        labels=dict(labels or {}) or None,
        session=session,
        documents=references or None,
    )
    return Request("POST", "/verifications", body=body, documents=tuple(uploads), key=key or new_key())


def read_documents(documents: Iterable[Document]) -> tuple[list[tuple[str, bytes]], list[DocumentReference]]:
    """Reads documents. A file has its name, and a file in a folder its path below it; hidden files are left out."""
    if isinstance(documents, (str, bytes)):
        raise TypeError("documents is a list of files, folders, and names with their content")
    uploads: list[tuple[str, bytes]] = []
    references: list[DocumentReference] = []
    for document in documents:
        if isinstance(document, tuple):
            uploads.append(document)
        elif isinstance(document, dict):
            references.append(document)
        else:
            uploads += read_path(Path(document))
    return uploads, references


def read_path(path: Path) -> list[tuple[str, bytes]]:
    """Reads a file, or the files in a folder."""
    if not path.is_dir():
        return [(path.name, path.read_bytes())]
    files = {file.relative_to(path): file for file in sorted(path.rglob("*")) if file.is_file()}
    return [
        (name.as_posix(), file.read_bytes())
        for name, file in files.items()
        if not any(part.startswith(".") for part in name.parts)
    ]


def command(
    run: str,
    path: str,
    body: Mapping[str, Any] | None,
    wait: WaitFor,
    timeout: int | None,
    key: str | None,
    method: str = "POST",
) -> Request:
    """Returns the request of a command for a run."""
    query = query_of(wait=None if wait == "decided" else wait, timeout=timeout)
    server_time = DECISION_TIME if timeout is None else timeout
    key = key or new_key()
    return Request(method, f"/runs/{quote_part(run)}/{path}", query, body, key=key, server_time=server_time)


def new_key() -> str:
    """Returns a new idempotency key."""
    return uuid.uuid4().hex


def answer_body(
    *,
    approve: bool = False,
    edit: Any = UNSET,
    reject: str | None = None,
    respond: str | None = None,
    value: Any = UNSET,
    decline: bool = False,
    pass_result: bool = False,
    fail: str | None = None,
    scope: AnswerScope = "once",
) -> AnswerBody:
    """Returns an answer; exactly one kind must be given.

    `approve=True` approves a call or a plan, and `edit` with changed arguments does too. `reject` refuses it with a
    reason, and `respond` with content instead of its result. `value` answers a question of an agent, and
    `decline=True` refuses to. `pass_result=True` and `fail` with feedback judge a result. `scope` extends an answer
    to later calls of the run.
    """
    kinds: list[AnswerBody] = []
    if approve:
        kinds.append({"answer": "approve"})
    if edit is not UNSET:
        kinds.append({"answer": "edit", "value": edit})
    if reject is not None:
        kinds.append({"answer": "reject", "text": reject})
    if respond is not None:
        kinds.append({"answer": "respond", "text": respond})
    if value is not UNSET:
        kinds.append({"answer": "answer", "value": value})
    if decline:
        kinds.append({"answer": "decline"})
    if pass_result:
        kinds.append({"answer": "pass"})
    if fail is not None:
        kinds.append({"answer": "fail", "text": fail})
    if len(kinds) != 1:
        names = "approve, edit, reject, respond, value, decline, pass_result or fail"
        raise ValueError(f"an answer has one kind, not {len(kinds)}: give {names}")
    if scope != "once":
        kinds[0]["scope"] = scope
    return kinds[0]


def batches(answers: Iterable[tuple[str, AnswerBody]]) -> list[list[BatchItem]]:
    """Returns answers in batches that the gateway accepts."""
    items: list[BatchItem] = [{"question": question, **answer} for question, answer in answers]
    return [items[start : start + MAX_BATCH] for start in range(0, len(items), MAX_BATCH)]


def api_url(url: str) -> str:
    """Returns the URL of the API of a gateway."""
    return url.rstrip("/").removesuffix("/api/v1") + "/api/v1"


def authorization_of(token: str | None) -> dict[str, str]:
    """Returns the header with a token, or with that of the environment; none if there is none."""
    token = token or os.environ.get("MILLRACE_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def content_of(request: Request) -> dict[str, Any]:
    """Returns the body of a request as the arguments of httpx."""
    if not request.documents:
        return {} if request.body is None else {"json": request.body}
    run = (None, json.dumps(request.body).encode(), "application/json")
    documents = [("documents", (name, content, "application/octet-stream")) for name, content in request.documents]
    return {"files": [("run", run), *documents]}
