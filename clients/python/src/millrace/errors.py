"""The errors of the client. Each `type` of a problem that the API returns has a class, below `ProblemError`."""

from __future__ import annotations

import json
from typing import ClassVar

from .types import Mistake, RunResult

PREFIX = "urn:millrace:problem:"


class MillraceError(Exception):
    """An error of this client or of the API."""


class ProblemError(MillraceError):
    """The API refused a request or could not serve it: a problem by RFC 9457."""

    kind: ClassVar[str] = ""
    """The name of the problem, without its prefix."""

    def __init__(self, type: str, title: str, status: int, detail: str, errors: list[Mistake]) -> None:
        super().__init__(detail or title)
        self.type = type
        """The type of the problem, such as `urn:millrace:problem:run-not-found`."""
        self.title = title
        """The type in words."""
        self.status = status
        """The HTTP status."""
        self.detail = detail
        """The mistake and the remedy."""
        self.errors = errors
        """The places of mistakes in the request."""


class InvalidRequest(ProblemError):
    """The path, the query, a header or the body is malformed."""

    kind = "invalid-request"


class UnknownHost(ProblemError):
    """The `Host` is not a name of the gateway's machine."""

    kind = "unknown-host"


class CrossOrigin(ProblemError):
    """A web page of another origin sent the request."""

    kind = "cross-origin"


class Unauthenticated(ProblemError):
    """The request needs a token, or its token is not valid."""

    kind = "unauthenticated"


class TenantNotChosen(ProblemError):
    """The token is for several tenants; the header `Millrace-Tenant` chooses one."""

    kind = "tenant-not-chosen"


class ScopeMissing(ProblemError):
    """The token lacks the scope of the operation."""

    kind = "scope-missing"


class NotFound(ProblemError):
    """There is no such resource."""


class UnknownPath(NotFound):
    """The API does not have this path."""

    kind = "unknown-path"


class RunNotFound(NotFound):
    """There is no such run."""

    kind = "run-not-found"


class SessionNotFound(NotFound):
    """No run belongs to the session."""

    kind = "session-not-found"


class TaskNotFound(NotFound):
    """The run has no such task."""

    kind = "task-not-found"


class QuestionNotFound(NotFound):
    """There is no such question."""

    kind = "question-not-found"


class FileNotFound(NotFound):
    """There is no such file or version."""

    kind = "file-not-found"


class BlobNotFound(NotFound):
    """There is no such blob."""

    kind = "blob-not-found"


class SourceNotFound(NotFound):
    """The result has no such source, or its text is no longer in the store."""

    kind = "source-not-found"


class LimitNotFound(NotFound):
    """The model has no limit."""

    kind = "limit-not-found"


class RunDeleted(NotFound):
    """The run was deleted."""

    kind = "run-deleted"


class RetentionRuleNotFound(NotFound):
    """There is no retention rule of this name."""

    kind = "retention-rule-not-found"


class TokenNotFound(NotFound):
    """There is no such token."""

    kind = "token-not-found"


class WebhookNotFound(NotFound):
    """There is no such webhook."""

    kind = "webhook-not-found"


class DeliveryNotFound(NotFound):
    """The webhook has no such delivery."""

    kind = "delivery-not-found"


class NoDeliverable(NotFound):
    """The run ended without a deliverable."""

    kind = "no-deliverable"


class MethodNotAllowed(ProblemError):
    """The resource does not have this method."""

    kind = "method-not-allowed"


class NotAcceptable(ProblemError):
    """No media type that the client accepts is available."""

    kind = "not-acceptable"


class UnsupportedMediaType(ProblemError):
    """The media type of the body is not supported."""

    kind = "unsupported-media-type"


class BodyTooLarge(ProblemError):
    """The body, a document or the request is too large."""

    kind = "body-too-large"


class RangeNotSatisfiable(ProblemError):
    """The file or blob has no such range."""

    kind = "range-not-satisfiable"


class RequestTimeout(ProblemError):
    """The body did not arrive in time."""

    kind = "request-timeout"


class InvalidRun(ProblemError):
    """The objective, the plan, the budget or a document is invalid."""

    kind = "invalid-run"


class IdempotencyKeyReused(ProblemError):
    """The idempotency key names another request."""

    kind = "idempotency-key-reused"


class Refused(ProblemError):
    """The state of the run does not allow the request; `detail` is the reason."""


class TooManyRuns(Refused):
    """As many runs as allowed wait for a place; submit it again later."""

    kind = "too-many-runs"


class TooManyTokens(Refused):
    """There are too many active tokens."""

    kind = "too-many-tokens"


class TooManyWebhooks(Refused):
    """There are too many webhooks."""

    kind = "too-many-webhooks"


class WebhookDisabled(Refused):
    """The webhook is disabled; enable it first."""

    kind = "webhook-disabled"


class PushConfigNotFound(NotFound):
    """The run has no such push config."""

    kind = "push-config-not-found"


class TooManyPushConfigs(Refused):
    """The run has too many push configs."""

    kind = "too-many-push-configs"


class CommandRefused(Refused):
    """The state of the run does not allow the command."""

    kind = "command-refused"


class AnswerRefused(Refused):
    """The answer does not fit its question."""

    kind = "answer-refused"


class QuestionClosed(Refused):
    """The question was answered, has expired, or was withdrawn."""

    kind = "question-closed"


class RunNotEnded(Refused):
    """The run has no result yet."""

    kind = "run-not-ended"


class LogDamaged(Refused):
    """The log of the run is damaged."""

    kind = "log-damaged"


class RateLimited(ProblemError):
    """The caller has sent too many requests within a second."""

    kind = "rate-limited"


class TooManyStreams(ProblemError):
    """The caller has too many open event streams."""

    kind = "too-many-streams"


class IdentityProviderUnavailable(ProblemError):
    """The keys of the identity provider cannot be read; repeat the request."""

    kind = "identity-provider-unavailable"


class ClusterUnavailable(ProblemError):
    """NATS did not respond to the gateway, also when the request was repeated."""

    kind = "cluster-unavailable"


class StoreFull(ProblemError):
    """The store of the cluster is full."""

    kind = "store-full"


class GatewayForbidden(ProblemError):
    """The identity of the gateway lacks a permission."""

    kind = "gateway-forbidden"


class UnreadableData(ProblemError):
    """A stored value is damaged, missing, or of a newer release."""

    kind = "unreadable-data"


class UnexpectedResponse(MillraceError):
    """The response is not one of the API, for instance that of a proxy."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"unexpected response with status {status}: {text[:200]!r}; is the URL that of a gateway?")
        self.status = status
        """The HTTP status."""


class GatewayUnreachable(MillraceError):
    """No gateway responded, also when the request was repeated. The cause is the last error of the connection."""


class WaitTimeout(MillraceError, TimeoutError):
    """The run has not ended in time."""

    def __init__(self, message: str, state: RunResult) -> None:
        super().__init__(message)
        self.state = state
        """The run so far."""


class StreamError(MillraceError):
    """The gateway could not read an event, so that the stream cannot continue."""


def problem_classes() -> dict[str, type[ProblemError]]:
    """Returns the class of each type of problem."""

    def below(parent: type[ProblemError]) -> list[type[ProblemError]]:
        children = parent.__subclasses__()
        return children + [one for child in children for one in below(child)]

    return {PREFIX + one.kind: one for one in below(ProblemError) if one.kind}


CLASSES = problem_classes()


def error_of_response(status: int, content_type: str, body: bytes) -> MillraceError:
    """Returns the error that a response is. A problem of an unknown type is a `ProblemError`."""
    problem: object = None
    if content_type.partition(";")[0].strip() == "application/problem+json":
        try:
            problem = json.loads(body)
        except ValueError:
            pass
    if not isinstance(problem, dict):
        return UnexpectedResponse(status, body.decode("utf-8", "replace"))
    kind = str(problem.get("type", "about:blank"))
    return CLASSES.get(kind, ProblemError)(
        type=kind,
        title=str(problem.get("title", "")),
        status=status,
        detail=str(problem.get("detail", "")),
        errors=list(problem.get("errors") or []),
    )
