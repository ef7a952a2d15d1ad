"""The webhooks of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from .._requests import Request, body_of, query_of, quote_part
from ..types import DeliveryJson, DeliveryList, WebhookJson, WebhookList
from .transport import Transport


class Webhooks:
    """The methods of a client for webhooks."""

    _transport: Transport

    def webhooks(self) -> list[WebhookJson]:
        """Lists the webhooks, oldest first, without their secrets."""
        return cast(WebhookList, self._read("/webhooks"))["webhooks"]

    def webhook(self, id: str) -> WebhookJson:
        """Reads a webhook."""
        return cast(WebhookJson, self._read(f"/webhooks/{quote_part(id)}"))

    def create_webhook(
        self,
        url: str,
        *,
        events: Iterable[str] | None = None,
        labels: Iterable[str] = (),
        description: str | None = None,
        secret: str | None = None,
    ) -> WebhookJson:
        """Creates a webhook. Its `secret`, by which its receiver verifies messages, is in this result only."""
        body = body_of(
            url=url,
            events=None if events is None else list(events),
            labels=list(labels),
            description=description,
            secret=secret,
        )
        return cast(WebhookJson, (self._transport.send(Request("POST", "/webhooks", body=body))).json())

    def change_webhook(
        self,
        id: str,
        *,
        url: str | None = None,
        events: Iterable[str] | None = None,
        labels: Iterable[str] | None = None,
        description: str | None = None,
        enabled: bool | None = None,
    ) -> WebhookJson:
        """Changes a webhook, or enables or disables it. `None` keeps a field."""
        body = body_of(
            url=url,
            events=None if events is None else list(events),
            labels=None if labels is None else list(labels),
            description=description,
            enabled=enabled,
        )
        request = Request("PATCH", f"/webhooks/{quote_part(id)}", body=body)
        return cast(WebhookJson, (self._transport.send(request)).json())

    def delete_webhook(self, id: str) -> None:
        """Deletes a webhook; its undelivered messages are dropped."""
        self._transport.send(Request("DELETE", f"/webhooks/{quote_part(id)}"))

    def rotate_webhook_secret(
        self, id: str, *, secret: str | None = None, keep_earlier_for: str | None = None
    ) -> WebhookJson:
        """Replaces the secret of a webhook; for a time messages are signed with both. The new one is in this result only."""
        body = body_of(secret=secret, keep_earlier_for=keep_earlier_for)
        request = Request("POST", f"/webhooks/{quote_part(id)}/secret", body=body)
        return cast(WebhookJson, (self._transport.send(request)).json())

    def test_webhook(self, id: str) -> DeliveryJson:
        """Sends a test message to the receiver of a webhook, and returns its delivery."""
        request = Request("POST", f"/webhooks/{quote_part(id)}/test")
        return cast(DeliveryJson, (self._transport.send(request)).json())

    def deliveries(
        self, webhook: str, *, state: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> DeliveryList:
        """Lists deliveries of a webhook, those that have changed last first."""
        query = query_of(state=state, limit=limit, cursor=cursor)
        return cast(DeliveryList, self._read(f"/webhooks/{quote_part(webhook)}/deliveries", query))

    def delivery(self, webhook: str, id: str) -> DeliveryJson:
        """Reads a delivery."""
        return cast(DeliveryJson, self._read(f"/webhooks/{quote_part(webhook)}/deliveries/{quote_part(id)}"))

    def redeliver(self, webhook: str, id: str) -> DeliveryJson:
        """Delivers a message again, with the same id."""
        request = Request("POST", f"/webhooks/{quote_part(webhook)}/deliveries/{quote_part(id)}/redeliver")
        return cast(DeliveryJson, (self._transport.send(request)).json())

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return (self._transport.send(Request(method, path, body=body))).json()

    def _read(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return (self._transport.send(Request("GET", path, query or {}))).json()
