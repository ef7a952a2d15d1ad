"""Stands between the test kit of A2A (a2aproject/a2a-tck) and a gateway. Arguments: PORT GATEWAY_URL.

The kit tells the agent what to do by the beginning of `messageId`: tck-input-required, tck-artifact-text. Here that becomes what any client of
Millrace sends, a plan of one task in a data part, for the capability of `tck_worker.py`. The kit uses one `messageId` for many
tests, which Millrace takes for one message that was sent again, so each gets its own. Everything else passes as it is.
"""

import http.client
import json
import re
import sys
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SCRIPT = re.compile(r"(?:tck|test)-([a-z0-9-]+?)(?:-[0-9a-f]{6,})?$")
TARGET = urllib.parse.urlsplit(sys.argv[2])


def with_plan(request: Any) -> None:
    """Adds the plan to the message of a request."""
    message = request.get("message") if isinstance(request, dict) else None
    if not isinstance(message, dict) or not isinstance(message.get("messageId"), str):
        return
    found = SCRIPT.match(message["messageId"])
    if message["messageId"]:
        message["messageId"] += f"-{uuid.uuid4()}"
    parts = message.get("parts")
    if found is None or message.get("taskId") or not isinstance(parts, list):
        return
    if message.get("role") != "ROLE_USER" or not all(isinstance(part, dict) and "text" in part for part in parts):
        return
    task = {"id": "tck", "objective": "act as the kit asks", "capability": "tck", "final": True}
    plan = {"tasks": [{**task, "parameters": {"script": found.group(1)}}]}
    parts.append({"data": {"plan": plan}})


class Adapter(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            content = json.loads(body)
            with_plan(content.get("params", content))
            body = json.dumps(content).encode()
        except (ValueError, AttributeError):
            pass
        connection = http.client.HTTPConnection(TARGET.hostname or "", TARGET.port or 80, timeout=330)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "content-length"}
        connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body)), "Connection": "close"})
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "server", "date"):
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        while chunk := answer.read1(65536):
            self.wfile.write(chunk)
            self.wfile.flush()
        self.close_connection = True

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = do_OPTIONS = forward

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Adapter).serve_forever()
