"""Sends requests, and repeats those that have no further effect."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx

from .._clock import monotonic, sleep
from .._requests import Request, api_url, content_of
from .._retry import Attempts, RetryPolicy, is_transient, retry_after
from ..errors import GatewayUnreachable, MillraceError, error_of_response

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


class Transport:
    """The connections to a gateway."""

    def __init__(
        self,
        url: str,
        timeout: float,
        stream_timeout: float,
        retry: RetryPolicy,
        headers: Mapping[str, str],
        http: httpx.Client | None,
    ) -> None:
        self.url = api_url(url)
        self.timeout = timeout
        self.stream_timeout = stream_timeout
        self.retry = retry
        self._headers = dict(headers)
        self._owns_http = http is None
        # The proxies of the environment lead away from this machine.
        is_local = urlsplit(self.url).hostname in LOOPBACK_HOSTS
        self._http = http or httpx.Client(trust_env=not is_local)

    def send(self, request: Request, limit: float | None = None) -> httpx.Response:
        """Sends a request, and returns the response if it is a success.

        A request that can be repeated is repeated for at most `limit` seconds, by default the policy's time.
        """
        limit = self.retry.request_time if limit is None else limit
        attempts = Attempts(self.retry, limit)
        while True:
            at_least = 0.0
            failure: MillraceError
            cause: Exception | None = None
            try:
                response = self._send_once(request)
            except httpx.TransportError as error:
                text = str(error) or type(error).__name__
                failure, cause = GatewayUnreachable(f"{request.method} {self.url}{request.path}: {text}"), error
            else:
                if response.is_success:
                    return response
                failure = error_of(response)
                if not is_transient(response.status_code, content_type(response)):
                    raise failure
                at_least = retry_after(response.headers.get("retry-after"))
            delay = attempts.fail(monotonic(), at_least) if request.can_be_repeated else None
            if delay is None:
                raise failure from cause
            sleep(delay)

    def _send_once(self, request: Request) -> httpx.Response:
        headers = {**self._headers, "Accept": request.accept}
        if request.key is not None:
            headers["Idempotency-Key"] = request.key
        return self._http.request(
            request.method,
            self.url + request.path,
            params=request.query,
            headers=headers,
            timeout=httpx.Timeout(self.timeout, read=self.timeout + request.server_time),
            follow_redirects=False,
            **content_of(request),
        )

    def open_stream(self, request: Request, last_id: str | None) -> httpx.Response:
        """Opens an event stream; the response may be an error."""
        headers = {
            **self._headers,
            "Accept": "text/event-stream, application/problem+json",
            "Accept-Encoding": "identity",
        }
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        timeout = httpx.Timeout(self.timeout, read=self.stream_timeout)
        opening = self._http.build_request(
            request.method, self.url + request.path, params=request.query, headers=headers, timeout=timeout
        )
        return self._http.send(opening, stream=True, follow_redirects=False)

    def close(self) -> None:
        """Closes the connections, unless they are those of a client of httpx that was passed."""
        if self._owns_http:
            self._http.close()


def content_type(response: httpx.Response) -> str:
    """Returns the media type of a response."""
    value: str = response.headers.get("content-type", "")
    return value


def error_of(response: httpx.Response) -> MillraceError:
    """Returns the error that a response is."""
    return error_of_response(response.status_code, content_type(response), response.content)
