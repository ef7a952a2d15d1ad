"""The client and the OpenAPI document of the gateway say the same."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict
from urllib.parse import parse_qsl, unquote

import httpx
import pytest

import millrace
from millrace import AsyncClient, AsyncQuestion, AsyncRun, Client, Question, Run, answer_body, errors, types

PROJECT = Path(__file__).resolve().parent.parent
DOCUMENT_FILE = PROJECT.parent.parent / "gateway" / "openapi.json"
sys.path.insert(0, str(PROJECT / "scripts"))

needs_document = pytest.mark.skipif(
    not DOCUMENT_FILE.exists(), reason="the OpenAPI document is in the repository only, not in the package"
)


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DOCUMENT_FILE.read_text(encoding="utf-8"))
    return loaded


@needs_document
def test_types_are_those_that_the_document_generates() -> None:
    from generate_types import generate_module

    text = (PROJECT / "src" / "millrace" / "types.py").read_text(encoding="utf-8")
    assert text == generate_module(), "run `python scripts/generate_types.py`"


def test_synchronous_client_is_generated() -> None:
    from generate_sync import TARGET, generate_modules

    for name, text in generate_modules().items():
        assert (TARGET / name).read_text(encoding="utf-8") == text, "run `python scripts/generate_sync.py`"


def names_of_schema(schemas: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    """Returns all names that an object of a schema may have."""
    names = set(schema.get("properties", {}))
    for variant in [*schema.get("oneOf", []), *schema.get("anyOf", [])]:
        names |= names_of_schema(schemas, variant)
    if "$ref" in schema:
        names |= names_of_schema(schemas, schemas[schema["$ref"].rsplit("/", 1)[1]])
    return names


def typed_dicts(annotation: Any) -> Iterator[Any]:
    """Returns the TypedDicts of which an annotation is a union."""
    if get_origin(annotation) is Union:
        for member in get_args(annotation):
            yield from typed_dicts(member)
    elif is_typeddict(annotation):
        yield annotation


@needs_document
def test_types_have_the_names_of_the_document() -> None:
    from generate_types import class_name

    schemas = document()["components"]["schemas"]
    count = 0
    for name, schema in schemas.items():
        schema_names = names_of_schema(schemas, schema)
        if name in {"SubmittedRun", "AppliedCommand"} or not schema_names:
            continue
        type_names: set[str] = set()
        for one in typed_dicts(getattr(types, class_name(name))):
            hints = get_type_hints(one)
            type_names |= set(hints)
            assert one.__required_keys__ | one.__optional_keys__ == set(hints)
            assert set(schema.get("required", [])) <= one.__required_keys__, (name, one)
        assert type_names == schema_names, name
        count += 1
    assert count > 80


@needs_document
def test_problems_are_those_of_the_document() -> None:
    kinds = document()["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
    assert set(errors.CLASSES) == set(kinds)


RUN = "r-1"
OPTIONS: dict[str, Any] = {"wait": "accepted", "timeout": 3, "idempotency_key": "k"}


def operations(client: Any, call: Callable[..., Any]) -> None:
    """Calls every method of a client with all of its arguments."""
    run = client.run(RUN)
    call(
        client.submit,
        "o",
        plan={"tasks": []},
        documents=[{"path": "a", "sha256": "b"}],
        mode="fixed",
        consult="never",
        budget={"tokens": 1},
        fail_fast=True,
        approve_plan=True,
        verification="remove",
        criteria=["c"],
        models=["m"],
        after=[run, "r-0"],
        labels={"team": "search"},
        session="chat",
        push_config={"url": "https://receiver.example/"},
    )
    call(client.submit, "o", documents=[("a", b"b")])
    call(
        client.verify,
        "It is hot.",
        documents=[{"path": "a", "sha256": "b"}],
        models=["verifier=none"],
        budget={"tokens": 1},
        after=[run, "r-0"],
        labels={"team": "search"},
        session="chat",
    )
    labels = ["team=search", "owner"]
    call(
        client.runs,
        "running",
        waiting="question",
        label=labels,
        session="chat",
        since="2h",
        until="1h",
        text="x",
        limit=5,
    )
    call(client.questions, history=True)
    question = call(client.question, f"{RUN}/a/1/1")
    call(question.answer, edit={"a": 1}, scope="this_call_in_run")
    call(question.answer, fail="f")
    call(client.answer_many, [(question, answer_body(approve=True))])
    call(client.blob, "ab")
    for method in [client.status, client.workers, client.capabilities, client.limits, client.health, client.version]:
        call(method)
    call(client.openapi)
    call(client.me)
    call(client.login, "mrt_x")
    call(client.logout)
    call(client.tokens, all=True)
    call(client.create_token, "ci", ["read"], expires_in="30d")
    call(client.revoke_token, "t-1")
    call(client.webhooks)
    call(client.webhook, "w-1")
    url, secret = "https://receiver.example/", "whsec_" + 32 * "A"
    events, labels = ["run_ended"], ["team=search"]
    call(client.create_webhook, url, events=events, labels=labels, description="x", secret=secret)
    call(client.change_webhook, "w-1", url=url, events=events, labels=labels, description="x", enabled=True)
    call(client.delete_webhook, "w-1")
    call(client.rotate_webhook_secret, "w-1", secret=secret, keep_earlier_for="1h")
    call(client.test_webhook, "w-1")
    call(client.deliveries, "w-1", state="failed", limit=5, cursor="9")
    call(client.delivery, "w-1", "m-1")
    call(client.redeliver, "w-1", "m-1")
    call(client.audit, 3)
    call(client.prune, "30d", labels=["team=search"], states=["completed"], dry_run=True)
    call(client.retention)
    call(client.set_retention_rule, "month", "30d")
    call(client.remove_retention_rule, "month")
    call(client.set_blob_grace, "24h")
    call(client.sweep)
    call(run.delete, wait=5)
    call(run.push_configs)
    call(run.push_config, "c-1")
    authentication = {"scheme": "Bearer", "credentials": "x"}
    call(run.set_push_config, url, id="c-1", token="t", authentication=authentication)
    call(run.delete_push_config, "c-1")
    call(client.set_limit, "openai:gpt", requests=1, tokens=2)
    call(client.clear_limit, "openai:gpt")
    call(client.checks)
    call(client.check_plan, {"tasks": []}, run=RUN)
    call(client.sessions, 5)
    call(client.admission)
    call(client.set_admission, max_running_runs=2, max_waiting_runs=5)
    call(client.session, "chat")
    call(client.spend, "day", state="completed", label="team", since="30d", until="1d")
    call(run.tasks, "running", at=3)
    call(run.task, "a", at=3)
    call(run.log, after=1, at=3, limit=5)
    call(run.timeline, "a", at=3)
    call(run.journal, "a", planner=True, attempt=1, after=1, at=3, limit=5, full=True)
    call(run.spend)
    call(run.source, "S1", first=1, last=2)
    call(run.source, "S1", task="a", first=1, last=2)
    call(run.get, at=3)
    call(run.wait, 5)
    call(run.result)
    for format in ["markdown", "html", "json"]:
        call(run.report, format)
    call(run.files, "notes", at=3)
    call(run.file, "notes/a b.md", version=2)
    call(run.file, "notes/a b.md", at=3)
    call(run.file_versions, "notes/a b.md")
    call(run.transcript, "a", attempt=1, at=3)
    call(run.planner_transcript, turn=1, at=3)
    call(run.trace, content=True, split="2h")
    call(run.questions, history=True)
    call(lambda: client.events("steps", types=["step"], runs=[RUN], label="team=search", after="x"))
    call(lambda: run.events("live", types=["step"], task="a", after="1.0"))
    commands: list[tuple[Callable[..., Any], list[Any]]] = [
        (run.pause, []),
        (run.interrupt, []),
        (run.resume, [{"tokens": 1}]),
        (run.cancel, ["why"]),
        (run.message, ["text"]),
        (run.signal, ["name", {"a": 1}]),
        (run.add, [[{"id": "b"}]]),
        (run.edit, ["a", {"objective": "o", "final": False}]),
        (run.cancel_task, ["a", "why"]),
        (run.retry, ["a", "feedback", {"objective": "o"}]),
    ]
    for method, arguments in commands:
        call(method, *arguments, **OPTIONS)


def reply_to(request: httpx.Request) -> httpx.Response:
    """Answers a request with everything that the client reads from a response."""
    if request.url.path.endswith("/events"):
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, text='event: end\ndata: {"type": "end"}\n\n')
    lists = [
        "runs",
        "sessions",
        "questions",
        "outcomes",
        "workers",
        "capabilities",
        "limits",
        "files",
        "decisions",
        "entries",
        "tokens",
        "webhooks",
        "push_configs",
    ]
    body = {"run": RUN, "sequence": 1, "id": f"{RUN}/a/1/1", "next": "", "token": "mrt_x", "tasks": [{}]}
    body.update({name: [] for name in lists})
    return httpx.Response(200, json=body)


def sent_by(kind: str) -> list[httpx.Request]:
    """Returns the requests of all methods."""
    requests: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        request.read()
        return record(request)

    async def handle_async(request: httpx.Request) -> httpx.Response:
        await request.aread()
        return record(request)

    def record(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return reply_to(request)

    if kind == "sync":

        def call(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            return list(result) if hasattr(result, "__next__") else result

        with httpx.Client(transport=httpx.MockTransport(handle)) as http:
            operations(Client(http=http), call)
        return requests

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handle_async)) as http:
            client = AsyncClient(http=http)

            # The calls are made one by one; what they return is needed by later ones.
            loop = asyncio.get_running_loop()

            def call(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
                async def await_result() -> Any:
                    result = method(*arguments, **options)
                    if hasattr(result, "__anext__"):
                        return [item async for item in result]
                    return await result

                return asyncio.run_coroutine_threadsafe(await_result(), loop).result(10)

            await asyncio.to_thread(operations, client, call)

    asyncio.run(run())
    return requests


def find_operation(paths: dict[str, Any], request: httpx.Request) -> tuple[str, dict[str, Any]]:
    """Returns the operation of the document that a request is; the path without parameters has precedence."""
    path = request.url.raw_path.decode().partition("?")[0]
    candidates = []
    for template, methods in paths.items():
        pattern = re.escape(template)
        pattern = re.sub(r"\\{(question|path)\\}", ".+", pattern)
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", pattern)
        if re.fullmatch(pattern, path) and request.method.lower() in methods:
            candidates.append((template.count("{"), template, methods[request.method.lower()]))
    assert candidates, f"{request.method} {path} is not in the document"
    _, template, operation = min(candidates, key=lambda one: (one[0], one[1]))
    return f"{request.method} {template}", operation


@needs_document
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_methods_are_the_operations_of_the_document(kind: str) -> None:
    api = document()
    schemas, paths = api["components"]["schemas"], api["paths"]
    names_by_operation: dict[str, set[str]] = {}
    for request in sent_by(kind):
        name, operation = find_operation(paths, request)
        parameters = {parameter["name"].lower() for parameter in operation.get("parameters", [])}
        query = {key for key, _ in parse_qsl(request.url.query.decode())}
        header = {key for key in ["idempotency-key", "last-event-id"] if key in request.headers}
        assert query | header <= parameters, name
        body: set[str] = set()
        if request.content:
            media_type = request.headers["content-type"].partition(";")[0]
            schema = operation["requestBody"]["content"][media_type]["schema"]
            names = names_of_schema(schemas, schema)
            if media_type == "application/json":
                body = set(json.loads(request.content))
                assert body <= names, name
        names_by_operation.setdefault(name, set()).update(query | header | body)
    all_operations = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert set(names_by_operation) == all_operations, "the client has a method for each operation, and no others"
    for name, names in names_by_operation.items():
        method, _, path = name.partition(" ")
        operation = paths[path][method.lower()]
        offered = {one["name"].lower() for one in operation.get("parameters", []) if one["in"] != "path"}
        body_schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
        offered |= names_of_schema(schemas, body_schema) if body_schema else set()
        # The header has precedence over `after`; `cursor` follows from the part before; `edit` and `retry` take any change.
        unused = offered - names - {"after", "cursor"}
        assert path.endswith(("/tasks/{task}", "/retry")) or not unused, f"{name}: the client offers no {sorted(unused)}"


def test_both_clients_have_the_same_methods() -> None:
    for one, other in [(Client, AsyncClient), (Run, AsyncRun), (Question, AsyncQuestion)]:
        names = {name for name in vars(one) if not name.startswith("_")} - {"close"}
        assert names == {name for name in vars(other) if not name.startswith("_")} - {"aclose"}
        for name in names:
            if callable(vars(one)[name]):
                parameters = inspect.signature(getattr(one, name)).parameters
                assert list(parameters) == list(inspect.signature(getattr(other, name)).parameters), name


def test_public_names_exist() -> None:
    for name in millrace.__all__:
        assert getattr(millrace, name).__doc__, name


def test_paths_are_quoted() -> None:
    paths = [unquote(request.url.raw_path.decode()) for request in sent_by("sync")]
    assert "/api/v1/runs/r-1/files/notes/a b.md?version=2" in paths
    assert "/api/v1/questions/r-1/a/1/1" in paths
