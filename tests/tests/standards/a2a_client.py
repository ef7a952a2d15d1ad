"""Drives runs with the Python SDK of A2A, and checks the answers. Arguments: BINDING URL TOKEN, where BINDING is HTTP+JSON or JSONRPC."""

import asyncio
import sys
import uuid
from typing import Any

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import get_artifact_text, get_message_text, new_data_part, new_text_part
from a2a.types.a2a_pb2 import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    A2AError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

ASK = {
    "tasks": [
        {"id": "ask", "objective": "ask", "capability": "echo", "parameters": {"ask": ["Which region?"]}, "final": True}
    ]
}


def message(*parts: Any, task: str = "", context: str = "", **metadata: Any) -> SendMessageRequest:
    content = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=list(parts), task_id=task, context_id=context)
    content.metadata.update(metadata)
    return SendMessageRequest(message=content)


def ask_message(context: str = "") -> SendMessageRequest:
    return message(new_text_part("ask"), new_data_part({"plan": ASK}), context=context)


async def send(client: Client, request: SendMessageRequest) -> list[StreamResponse]:
    return [event async for event in client.send_message(request)]


async def send_one(client: Client, request: SendMessageRequest) -> Task:
    (event,) = await send(client, request)
    return event.task


async def refused(kind: type[A2AError], call: Any) -> None:
    try:
        await call
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


async def check_polling(client: Client) -> None:
    context = f"c-{uuid.uuid4()}"
    request = ask_message(context)
    task = await send_one(client, request)
    assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED, task
    assert get_message_text(task.status.message) == "Which region?", task
    assert task.context_id == context, task
    repeated = await send_one(client, request)
    assert repeated.id == task.id, "a repeated message has started another run"

    # A list has what the summaries have, which follow the log.
    for _ in range(200):
        listed = await client.list_tasks(ListTasksRequest(context_id=context))
        if listed.tasks and listed.tasks[0].status.state == TaskState.TASK_STATE_INPUT_REQUIRED:
            break
        await asyncio.sleep(0.1)
    assert [one.id for one in listed.tasks] == [task.id] and listed.total_size == 1, listed
    listed = await client.list_tasks(
        ListTasksRequest(context_id=context, status=TaskState.TASK_STATE_COMPLETED)
    )
    assert not listed.tasks and not listed.next_page_token, listed

    task = await send_one(client, message(new_text_part("eu"), task=task.id, context=context))
    assert task.status.state == TaskState.TASK_STATE_COMPLETED, task
    report = {artifact.artifact_id: artifact for artifact in task.artifacts}["report"]
    assert get_artifact_text(report), report
    again = await client.get_task(GetTaskRequest(id=task.id, history_length=1))
    assert again.artifacts == task.artifacts, again
    assert [get_message_text(one) for one in again.history] == ["eu"], "not the newest message"
    assert [get_message_text(one) for one in task.history] == ["ask", "Which region?", "eu"], task
    listed = await client.list_tasks(ListTasksRequest(context_id=context, include_artifacts=True))
    assert listed.tasks[0].artifacts == task.artifacts, listed

    await refused(UnsupportedOperationError, send_one(client, message(new_text_part("more"), task=task.id)))
    await refused(TaskNotCancelableError, client.cancel_task(CancelTaskRequest(id=task.id)))
    await refused(TaskNotFoundError, client.get_task(GetTaskRequest(id="unknown")))
    await check_push(client, task.id)

    task = await send_one(client, ask_message())
    assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED, task
    task = await client.cancel_task(CancelTaskRequest(id=task.id))
    assert task.status.state == TaskState.TASK_STATE_CANCELED, task

    task = await send_one(client, message(new_text_part("say it"), skill="echo"))
    assert task.status.state == TaskState.TASK_STATE_COMPLETED, task


async def check_push(client: Client, task: str) -> None:
    secret = AuthenticationInfo(scheme="Bearer", credentials="s3cret")
    config = TaskPushNotificationConfig(
        task_id=task, id="c1", url="https://receiver.invalid/hook", token="t0ken", authentication=secret
    )
    created = await client.create_task_push_notification_config(config)
    assert (created.id, created.task_id, created.url) == ("c1", task, config.url), created
    assert created.authentication.scheme == "Bearer" and "s3cret" not in str(created), created
    named = {"task_id": task, "id": "c1"}
    found = await client.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(**named))
    assert found == created and "t0ken" not in str(found), found
    listed = await client.list_task_push_notification_configs(ListTaskPushNotificationConfigsRequest(task_id=task))
    assert list(listed.configs) == [created], listed
    private = TaskPushNotificationConfig(task_id=task, url="https://127.0.0.1/hook")
    await refused(InvalidParamsError, client.create_task_push_notification_config(private))
    for _ in range(2):
        await client.delete_task_push_notification_config(DeleteTaskPushNotificationConfigRequest(**named))
    await refused(TaskNotFoundError, client.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(**named)))


async def check_streaming(client: Client, http: httpx.AsyncClient, url: str) -> None:
    events = await send(client, ask_message())
    assert events[0].HasField("task"), events
    run = events[0].task.id
    last = events[-1].status_update.status if len(events) > 1 else events[0].task.status
    assert last.state == TaskState.TASK_STATE_INPUT_REQUIRED, events

    received: list[StreamResponse] = []

    async def follow() -> None:
        async for event in client.subscribe(SubscribeToTaskRequest(id=run)):
            received.append(event)

    following = asyncio.create_task(follow())
    while not received:
        await asyncio.sleep(0.05)
        if following.done():
            following.result()
    answered = await send(client, message(new_text_part("eu"), task=run))
    assert answered[0].task.id == run, answered
    await asyncio.wait_for(following, 60)
    for events in (received, answered):
        statuses = [event.status_update for event in events if event.HasField("status_update")]
        assert statuses[-1].status.state == TaskState.TASK_STATE_COMPLETED, events
        sequences = [tuple(map(int, one.metadata["sequence"].split("."))) for one in statuses]
        assert sequences == sorted(set(sequences)), sequences
        artifacts = [event.artifact_update.artifact for event in events if event.HasField("artifact_update")]
        assert [one.artifact_id for one in artifacts] == ["report"], artifacts

    # A client that was cut off gets the rest, also of a run that has ended.
    statuses = [event.status_update for event in received if event.HasField("status_update")]
    sequences = [one.metadata["sequence"] for one in statuses]
    headers = {"Last-Event-ID": sequences[0]}
    resumed = (await http.get(f"{url}/a2a/tasks/{run}:subscribe", headers=headers)).text
    ids = [line.removeprefix("id: ") for line in resumed.splitlines() if line.startswith("id: ")]
    assert ids == sequences[1:] and ids, (ids, sequences)

    async def follow_ended() -> None:
        async for _ in client.subscribe(SubscribeToTaskRequest(id=run)):
            pass

    await refused(UnsupportedOperationError, follow_ended())


async def main(binding: str, url: str, token: str) -> None:
    async with httpx.AsyncClient() as public:
        card = await A2ACardResolver(public, url).get_agent_card()
        assert [skill.id for skill in card.skills] == ["objective"], "the public card has capabilities"
        assert "token" in card.security_schemes, card
        response = await public.get(f"{url}/a2a/tasks")
        assert response.status_code == 401, response.text
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        assert "echo" in [skill.id for skill in card.skills], card
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding], streaming=False)
        client = ClientFactory(config).create(card)
        extended = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
        assert "echo" in [skill.id for skill in extended.skills], extended
        await check_polling(client)
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
        await check_streaming(ClientFactory(config).create(card), http, url)
        old = await http.get(f"{url}/a2a/tasks", headers={"A2A-Version": "0.3"})
        assert old.status_code == 400 and "VERSION_NOT_SUPPORTED" in old.text, old.text
    print("passed")


asyncio.run(main(*sys.argv[1:]))
