"""Drives runs with the Python SDK of MCP, and checks the answers.

Arguments: CHECK MODE SERVER…, where SERVER is a URL, or a program with its arguments.
"""

import asyncio
import os
import sys
from typing import Any, Literal

import httpx2
from mcp import StdioServerParameters
from mcp.client import Client, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, Request, RequestParams, Result, TextContent

ASK = {
    "tasks": [
        {"id": "ask", "objective": "ask", "capability": "echo", "parameters": {"ask": ["Which region?"]}, "final": True}
    ]
}
ECHO = {"tasks": [{"id": "echo", "objective": "say it", "capability": "echo", "final": True}]}


def server_of(arguments: list[str]) -> Any:
    if arguments[0].startswith("http"):
        return arguments[0]
    return StdioServerParameters(command=arguments[0], args=arguments[1:], env=dict(os.environ))


def text_of(result: CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, TextContent))


async def call(client: Client, name: str, **arguments: Any) -> Any:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, f"{name}: {text_of(result)}"
    return result.structured_content if result.structured_content is not None else text_of(result)


async def refusal(client: Client, name: str, **arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    assert result.is_error, f"{name}: {text_of(result)}"
    return text_of(result)


async def wait_for_question(client: Client, run: str) -> Any:
    for _ in range(60):
        state = await call(client, "wait_for_run", run=run, timeout_seconds=20)
        if state["open_questions"]:
            return state["open_questions"][0]
    raise AssertionError(f"run {run} asks nothing")


async def wait_for_end(client: Client, run: str) -> Any:
    for _ in range(60):
        state = await call(client, "wait_for_run", run=run, timeout_seconds=20)
        if "end" in state:
            return state
    raise AssertionError(f"run {run} does not end")


async def check_tools(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert len(tools) == 17, tools
    assert tools["get_run"].annotations.read_only_hint and tools["cancel_run"].annotations.destructive_hint
    assert all(tool.output_schema for name, tool in tools.items() if name not in ("get_report", "read_file"))
    templates = (await client.list_resource_templates()).resource_templates
    assert len(templates) == 2, templates
    capabilities = (await call(client, "list_capabilities"))["capabilities"]
    assert "echo" in [one["name"] for one in capabilities], capabilities

    started = {"objective": "ask", "plan": ASK, "labels": {"from": "mcp"}, "key": f"key-{os.getpid()}"}
    run = (await call(client, "start_run", **started))["run"]
    assert (await call(client, "start_run", **started))["run"] == run
    question = await wait_for_question(client, run)
    assert question["text"] == "Which region?" and "answer" in question["decisions"], question
    listed = (await call(client, "list_questions"))["questions"]
    assert question["id"] in [one["id"] for one in listed], listed
    answered = await call(client, "answer_question", question=question["id"], answer="answer", value="eu")
    assert answered["outcome"] == "answered", answered
    again = await refusal(client, "answer_question", question=question["id"], answer="answer", value="us")
    assert "eu" in again or "already" in again, again
    state = await wait_for_end(client, run)
    assert state["state"] == "completed" and state["tasks"][0]["id"] == "ask", state
    report = await call(client, "get_report", run=run)
    resource = await client.read_resource(f"millrace://runs/{run}/report")
    assert resource.contents[0].text == report and report, report
    listed = (await call(client, "list_runs", label="from=mcp"))["runs"]
    assert run in [one["run"] for one in listed], listed

    # Two reads have the events of one, without a gap.
    everything = await call(client, "read_events", run=run, limit=200)
    assert everything["ended"], everything
    first = await call(client, "read_events", run=run, limit=2)
    rest = await call(client, "read_events", run=run, after=first["after"], limit=200)
    assert len(first["events"]) == 2 and first["events"] + rest["events"] == everything["events"], (first, rest)

    documents = [{"path": "notes/a.md", "text": "Two words"}]
    run = (await call(client, "start_run", objective="say", plan=ECHO, documents=documents))["run"]
    assert (await wait_for_end(client, run))["state"] == "completed"
    assert (await call(client, "list_files", run=run))["files"] == []
    assert "no file" in await refusal(client, "read_file", run=run, path="a.md")
    task = (await call(client, "get_run", run=run))["tasks"][0]["id"]
    assert "final" in await refusal(client, "retry_task", run=run, task=task, final=True)
    changed = await call(client, "retry_task", run=run, task=task, feedback="again", parameters={"bytes": 7})
    assert changed["type"] == "command_applied", changed
    assert (await wait_for_end(client, run))["state"] == "completed"
    assert len((await call(client, "get_report", run=run)).strip()) == 7

    run = (await call(client, "start_run", objective="ask", plan=ASK))["run"]
    await wait_for_question(client, run)
    assert (await call(client, "pause_run", run=run))["type"] == "command_applied"
    assert (await call(client, "resume_run", run=run))["type"] == "command_applied"
    assert (await call(client, "cancel_run", run=run, reason="enough"))["type"] == "command_applied"
    assert (await wait_for_end(client, run))["state"] == "cancelled"

    assert "there is no run" in await refusal(client, "get_run", run="unknown")
    assert "unknown field" in await refusal(client, "get_run", run=run, deep=True)
    assert "objective" in await refusal(client, "start_run")
    assert "documents" in await refusal(client, "verify_text", text="It is hot.")


class StartedTask(Result):
    """A run that the server returns as a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    poll_interval_ms: int | None = None


class TaskState(Result):
    """The state of a task."""

    task_id: str
    status: str
    result: dict[str, Any] | None = None
    input_requests: dict[str, Any] | None = None


class TaskParams(RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(Request[TaskParams, str]):
    name_param = "taskId"


async def send(session: Any, method: str, kind: Any, task: str, **more: Any) -> Any:
    return await session.send_request(TaskRequest(method=method, params=TaskParams(task_id=task, **more)), kind)


class Tasks(ClientExtension):
    """The tasks extension, as far as this check needs it."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.statuses: list[str] = []
        self.cancel = False

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=StartedTask, resolve=self.resolve)]

    async def resolve(self, started: StartedTask, context: Any) -> CallToolResult:
        for _ in range(600):
            state = await send(context.session, "tasks/get", TaskState, started.task_id)
            if state.status not in self.statuses:
                self.statuses.append(state.status)
            if state.status == "input_required" and self.cancel:
                await send(context.session, "tasks/cancel", Result, started.task_id)
            elif state.status == "input_required":
                (key, request), = (state.input_requests or {}).items()
                assert request["method"] == "elicitation/create", request
                assert request["params"]["message"] == "Which region?", request
                responses = {key: {"action": "accept", "content": {"value": "eu"}}}
                await send(context.session, "tasks/update", Result, started.task_id, input_responses=responses)
            elif state.status == "cancelled":
                cancelled = [TextContent(type="text", text="cancelled")]
                return CallToolResult(content=cancelled, structured_content={"run": started.task_id})
            elif state.status != "working":
                return CallToolResult.model_validate(state.result)
            await asyncio.sleep(0.1)
        raise AssertionError(f"task {started.task_id} does not end")


async def check_tasks(mode: str, server: list[str]) -> None:
    tasks = Tasks()
    async with Client(server_of(server), mode=mode, extensions=[tasks]) as client:
        result = await client.call_tool("start_run", {"objective": "ask", "plan": ASK})
        assert not result.is_error and text_of(result), result
        assert tasks.statuses[-1] == "completed" and "input_required" in tasks.statuses, tasks.statuses
        tasks.cancel = True
        assert text_of(await client.call_tool("start_run", {"objective": "ask", "plan": ASK})) == "cancelled"
        assert (await client.call_tool("start_run", {})).is_error


async def with_token(url: str, token: str, mode: str, check: Any) -> None:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            await check(client)


async def check_scopes(mode: str, url: str, reader: str, writer: str) -> None:
    async def check_reader(client: Client) -> None:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert "get_run" in tools and "start_run" not in tools and "cancel_run" not in tools, tools
        refused = await refusal(client, "start_run", objective="say", plan=ECHO)
        assert "scope submit" in refused, refused

    async def check_writer(client: Client) -> None:
        run = (await call(client, "start_run", objective="say", plan=ECHO))["run"]
        assert (await wait_for_end(client, run))["state"] == "completed"

    await with_token(url, reader, mode, check_reader)
    await with_token(url, writer, mode, check_writer)
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    bearer = {"Authorization": f"Bearer {writer}"}
    for headers, status in [
        ({}, 401),
        (bearer | {"Origin": "https://evil.example"}, 403),
        (bearer | {"Host": "evil.example"}, 421),
    ]:
        # A refused request closes its connection.
        async with httpx2.AsyncClient(timeout=60) as http:
            headers = {"Accept": "application/json, text/event-stream"} | headers
            refused = await http.post(url, json=listing, headers=headers)
        assert refused.status_code == status, refused.text


async def main(check: str, mode: str, *server: str) -> None:
    if check == "tasks":
        await check_tasks(mode, list(server))
    elif check == "scopes":
        await check_scopes(mode, *server)
    else:
        async with Client(server_of(list(server)), mode=mode) as client:
            await check_tools(client)
    print("passed")


asyncio.run(main(*sys.argv[1:]))
