"""The client of the HTTP API."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Union, cast

import httpx

from .._follow import Follower
from .._requests import (
    MAX_PAGE,
    Document,
    Request,
    authorization_of,
    batches,
    body_of,
    list_of,
    query_of,
    quote_part,
    quote_parts,
    submission,
    verification,
)
from .._retry import RetryPolicy
from .._verification import Verification, verification_of
from ..types import (
    Admission,
    AnswerBody,
    AnswerLine,
    AnswerList,
    AuditList,
    Caller,
    CapabilityJson,
    ClusterChecks,
    ClusterJsonCapabilities,
    ClusterJsonStatus,
    ClusterJsonWorkers,
    Consult,
    EndReason,
    Health,
    LimitLine,
    LimitList,
    Mode,
    PlanCheck,
    ProcessJson,
    PruneJson,
    PushConfigBody,
    QuestionLine,
    QuestionList,
    RetentionJson,
    RunLine,
    RunList,
    RunState,
    RunWaitKind,
    SessionLine,
    SessionList,
    SessionRuns,
    SpendReport,
    SubmittedRun,
    TokenJson,
    TokenList,
    VerificationPolicy,
    Version,
)
from .question import Question
from .run import Run
from .stream import EventStream
from .transport import Transport
from .webhooks import Webhooks

QuestionOrId = Union[Question, str]
RunOrId = Union[Run, str]


class Client(Webhooks):
    """A client of Millrace's HTTP API.

    `timeout` limits each step of a request in seconds, `stream_timeout` the silence of an event stream, in which
    the gateway writes at least every 15 seconds. Requests that read, and those with an idempotency key, are
    repeated by the policy `retry` after a failure of the connection or of the cluster. `token` is a token of the API,
    by default that in the environment variable `MILLRACE_TOKEN`. `http` is a client of httpx of your own, for instance
    with a proxy or TLS settings.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:7070",
        *,
        token: str | None = None,
        timeout: float = 30.0,
        stream_timeout: float = 45.0,
        retry: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        all_headers = {**authorization_of(token), **(headers or {})}
        self._transport = Transport(url, timeout, stream_timeout, retry or RetryPolicy(), all_headers, http)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def submit(
        self,
        objective: str | None = None,
        *,
        plan: str | Mapping[str, Any] | os.PathLike[str] | None = None,
        documents: Iterable[Document] = (),
        mode: Mode | None = None,
        consult: Consult | None = None,
        budget: Mapping[str, Any] | None = None,
        fail_fast: bool = False,
        approve_plan: bool = False,
        verification: VerificationPolicy | None = None,
        criteria: Iterable[str] = (),
        models: Iterable[str] = (),
        after: Iterable[RunOrId] = (),
        labels: Mapping[str, str] | None = None,
        session: str | None = None,
        push_config: PushConfigBody | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Submits a run.

        `plan` is a plan as in a plan file: as an object, as YAML, or as the path of a file. `documents` are files,
        folders, and names with their content; agents see a file by its name, and a file in a folder by its path
        below the folder. `after` are ended runs whose results the new run sees. The runs of a `session` run one after
        the other, and each sees the results of those before it. `verification` is the consequence of statements that no
        source supports. `push_config` names a receiver of A2A notifications
        about the run. The request is repeated after a
        failure and starts one run, since it has an idempotency key: a random one, or `idempotency_key`, by which a
        later call returns the same run.
        """
        earlier = [run if isinstance(run, str) else run.id for run in after]
        request = submission(
            objective,
            plan,
            documents,
            mode,
            consult,
            budget,
            fail_fast,
            approve_plan,
            verification,
            criteria,
            models,
            earlier,
            labels,
            session,
            push_config,
            idempotency_key,
        )
        reply = cast(SubmittedRun, (self._transport.send(request)).json())
        return Run(self._transport, reply["run"], reply["sequence"])

    def verify(
        self,
        text: str,
        *,
        documents: Iterable[Document] = (),
        models: Iterable[str] = (),
        budget: Mapping[str, Any] | None = None,
        after: Iterable[RunOrId] = (),
        labels: Mapping[str, str] | None = None,
        session: str | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
    ) -> Verification:
        """Verifies the statements of a text with documents, waits for the verdicts and returns them.

        It is a run: `documents` and the other arguments are those of `submit`, and the model of the role `verifier`
        judges (`models=["verifier=ollama:bespoke-minicheck"]`). Raises `WaitTimeout` if it takes longer than
        `timeout` seconds, and `NoDeliverable` if it fails.
        """
        earlier = [run if isinstance(run, str) else run.id for run in after]
        request = verification(text, documents, models, budget, earlier, labels, session, idempotency_key)
        reply = cast(SubmittedRun, (self._transport.send(request)).json())
        run = Run(self._transport, reply["run"], reply["sequence"])
        state = run.wait(timeout)
        return verification_of(state, state.get("result") or run.result())

    def run(self, id: str) -> Run:
        """Returns a run by its id, without a request. A unique prefix and `latest` are ids too."""
        return Run(self._transport, id)

    def runs(
        self,
        state: RunState | Iterable[RunState] | None = None,
        *,
        waiting: RunWaitKind | Iterable[RunWaitKind] | None = None,
        label: str | Iterable[str] | None = None,
        session: str | None = None,
        since: str | None = None,
        until: str | None = None,
        text: str | None = None,
        limit: int | None = None,
    ) -> Iterator[RunLine]:
        """Lists runs, newest first, part by part as the iteration goes on, and at most `limit` of them.

        `waiting` selects live runs by what they wait for. `text` is a part of their ids or objectives. `label` has labels that the runs must have: `NAME=VALUE`, or `NAME` for any value. `since` and `until` are
        times in RFC 3339, or durations before now such as `2h`.
        """
        states, waits, labels = list_of(state), list_of(waiting), list_of(label)
        left, cursor = limit, None
        while left is None or left > 0:
            size = None if left is None else min(left, MAX_PAGE)
            query = query_of(
                state=states,
                waiting=waits,
                label=labels,
                session=session,
                since=since,
                until=until,
                text=text,
                limit=size,
                cursor=cursor,
            )
            part = cast(RunList, self._read("/runs", query))
            for line in part["runs"][:left]:
                yield line
            left = None if left is None else left - len(part["runs"])
            cursor = part["next"]
            if not cursor:
                return

    def sessions(self, limit: int | None = None) -> Iterator[SessionLine]:
        """Lists sessions with their totals, by their last changes, newest first, part by part as the iteration goes on, and at most
        `limit` of them.
        """
        left, cursor = limit, None
        while left is None or left > 0:
            size = None if left is None else min(left, MAX_PAGE)
            part = cast(SessionList, self._read("/sessions", query_of(limit=size, cursor=cursor)))
            for line in part["sessions"][:left]:
                yield line
            left = None if left is None else left - len(part["sessions"])
            cursor = part["next"]
            if not cursor:
                return

    def session(self, name: str) -> SessionRuns:
        """Returns a session with its runs, in their order."""
        return cast(SessionRuns, self._read(f"/sessions/{quote_part(name)}"))

    def check_plan(self, plan: str | Mapping[str, Any], *, run: str | None = None) -> PlanCheck:
        """Checks a plan, as an object or as YAML in a string, without submitting it.

        Each mistake has its line and column. With `run` the plan has tasks that would be added to that run.
        """
        request = Request("POST", "/plans/check", body={"plan": plan, **body_of(run=run)})
        return cast(PlanCheck, (self._transport.send(request)).json())

    def spend(
        self,
        group: str | None = None,
        *,
        state: RunState | Iterable[RunState] | None = None,
        label: str | Iterable[str] | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> SpendReport:
        """Reads the usage of all runs by `capability`, `model`, `day`, `state` or `label:NAME`."""
        query = query_of(group=group, state=list_of(state), label=list_of(label), since=since, until=until)
        return cast(SpendReport, self._read("/spend", query))

    def events(
        self,
        level: Literal["decisions", "steps"] = "decisions",
        *,
        types: str | Iterable[str] | None = None,
        runs: str | Iterable[str] | None = None,
        label: str | Iterable[str] | None = None,
        after: str | None = None,
    ) -> EventStream:
        """Follows the events of all runs, or of those that `runs` or `label` select, from now on or after the event with the id `after`.

        `after="start"` begins with the first run. `run_summary` has the line of a run whenever it changes. The stream does not
        end by itself.
        """
        query = query_of(level=level, types=list_of(types), runs=list_of(runs), label=list_of(label))
        follower = Follower(after, shows_lag=False, of_all_runs=True)
        return EventStream(self._transport, Request("GET", "/events", query=query), follower)

    def questions(self, history: bool = False) -> list[Question]:
        """Lists the open questions of all runs, with `history` the closed ones too."""
        query = query_of(history="true" if history else None)
        lines = cast(QuestionList, self._read("/questions", query))["questions"]
        return [Question(self._transport, line) for line in lines]

    def question(self, id: str) -> Question:
        """Reads a question by its id."""
        line = cast(QuestionLine, self._read(f"/questions/{quote_parts(id)}"))
        return Question(self._transport, line)

    def answer_many(self, answers: Iterable[tuple[QuestionOrId, AnswerBody]]) -> list[AnswerLine]:
        """Answers several questions; `answer_body` makes the answers.

        Each one has an outcome of its own, in their order: `answered`, `already`, `refused`, and so on. No outcome
        is raised.
        """
        pairs = [(question if isinstance(question, str) else question.id, body) for question, body in answers]
        outcomes: list[AnswerLine] = []
        for batch in batches(pairs):
            request = Request("POST", "/answers", body={"answers": batch}, server_time=10.0 * len(batch))
            outcomes += cast(AnswerList, (self._transport.send(request)).json())["outcomes"]
        return outcomes

    def blob(self, sha256: str) -> bytes:
        """Reads a stored value, such as a document, by the SHA-256 of its content."""
        request = Request("GET", f"/blobs/{quote_part(sha256)}", accept="*/*")
        return (self._transport.send(request)).content

    def status(self) -> ClusterJsonStatus:
        """Reads the processes, capabilities, queues, lanes and runs of the cluster."""
        return cast(ClusterJsonStatus, self._read("/status"))

    def workers(self) -> list[ProcessJson]:
        """Lists the workers and critics."""
        return cast(ClusterJsonWorkers, self._read("/workers"))["workers"]

    def capabilities(self) -> list[CapabilityJson]:
        """Lists the capabilities with their slots and queues."""
        return cast(ClusterJsonCapabilities, self._read("/capabilities"))["capabilities"]

    def checks(self) -> ClusterChecks:
        """Checks the processes, lanes, queues, limits and storage of the cluster; each problem has advice."""
        return cast(ClusterChecks, self._read("/checks"))

    def limits(self) -> list[LimitLine]:
        """Lists the rate limits of models."""
        return cast(LimitList, self._read("/limits"))["limits"]

    def admission(self) -> Admission:
        """Reads the caps on the number of runs, and how many run and wait."""
        return cast(Admission, self._read("/admission"))

    def set_admission(
        self, *, max_running_runs: int | None = None, max_waiting_runs: int | None = None
    ) -> None:
        """Sets the caps on the numbers of running and of waiting runs; `None` is unlimited."""
        body = body_of(max_running_runs=max_running_runs, max_waiting_runs=max_waiting_runs)
        self._send("PUT", "/admission", body)

    def set_limit(self, model: str, *, requests: int | None = None, tokens: int | None = None) -> None:
        """Sets the rate limit of a model, in requests and tokens per minute."""
        body = body_of(requests=requests, tokens=tokens)
        self._transport.send(Request("PUT", f"/limits/{quote_part(model)}", body=body))

    def clear_limit(self, model: str) -> None:
        """Removes the rate limit of a model."""
        self._transport.send(Request("DELETE", f"/limits/{quote_part(model)}"))

    def prune(
        self,
        older_than: str,
        *,
        labels: Iterable[str] = (),
        states: Iterable[EndReason] = (),
        dry_run: bool = False,
    ) -> PruneJson:
        """Deletes the runs that ended longer ago than `older_than`, such as `30d`; with `dry_run` it only returns them."""
        body = body_of(older_than=older_than, labels=list(labels), states=list(states), dry_run=dry_run)
        return cast(PruneJson, self._send("POST", "/runs/prune", body))

    def retention(self) -> RetentionJson:
        """Reads the retention rules, the settings, and the last sweep of blobs."""
        return cast(RetentionJson, self._read("/retention"))

    def set_retention_rule(
        self, name: str, older_than: str, *, labels: Iterable[str] = (), states: Iterable[EndReason] = ()
    ) -> None:
        """Sets a rule by which runs are deleted that ended longer ago than `older_than`, such as `30d`."""
        body = body_of(older_than=older_than, labels=list(labels), states=list(states))
        self._send("PUT", f"/retention/rules/{quote_part(name)}", body)

    def remove_retention_rule(self, name: str) -> None:
        """Removes a retention rule."""
        self._send("DELETE", f"/retention/rules/{quote_part(name)}")

    def set_blob_grace(self, blob_grace: str) -> None:
        """Sets the duration for which blobs stay to which nothing refers, at least `1h`."""
        self._send("PUT", "/retention/settings", body_of(blob_grace=blob_grace))

    def sweep(self) -> None:
        """Sweeps blobs now; `retention` has the outcome."""
        self._send("POST", "/retention/sweep")

    def health(self) -> Health:
        """Checks whether the cluster responds to the gateway, and counts its supervisors and workers."""
        return cast(Health, self._read("/health"))

    def me(self) -> Caller:
        """Reads the caller of this client's requests, and what it may do."""
        return cast(Caller, self._read("/me"))

    def login(self, token: str) -> Caller:
        """Exchanges a token for a cookie that this client sends from then on, as a page in a browser does."""
        return cast(Caller, (self._transport.send(Request("POST", "/login", body={"token": token}))).json())

    def logout(self) -> None:
        """Removes the cookie of `login`."""
        self._transport.send(Request("POST", "/logout"))

    def tokens(self, *, all: bool = False) -> list[TokenJson]:
        """Lists the active tokens; with `all` the expired and revoked ones too."""
        return cast(TokenList, self._read("/tokens", query_of(all="true" if all else None)))["tokens"]

    def create_token(self, name: str, scopes: Iterable[str], *, expires_in: str | None = None) -> str:
        """Creates a token and returns its text, which cannot be read again."""
        body = body_of(name=name, scopes=list(scopes), expires_in=expires_in)
        created = (self._transport.send(Request("POST", "/tokens", body=body))).json()
        return cast(str, created["token"])

    def revoke_token(self, id: str) -> None:
        """Revokes a token; every gateway refuses it within a second."""
        self._transport.send(Request("DELETE", f"/tokens/{quote_part(id)}"))

    def audit(self, after: int = 0) -> AuditList:
        """Lists administrative actions after a sequence, oldest first, at most 1000."""
        return cast(AuditList, self._read("/audit", query_of(after=after)))

    def version(self) -> Version:
        """Reads the version of the gateway."""
        return cast(Version, self._read("/version"))

    def openapi(self) -> dict[str, Any]:
        """Reads the OpenAPI document of the gateway."""
        return cast("dict[str, Any]", self._read("/openapi.json"))
