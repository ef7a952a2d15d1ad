"""A service, an MCP server and a model for tests, on 127.0.0.1, that send back what they get, in many encodings: `echo.py PORT_FILE` serves
HTTP, `echo.py` is an MCP server on stdio, `echo.py program MODE` a program, `echo.py hook` a hook."""

import base64
import html
import http.server
import json
import os
import sys
import urllib.parse

SEEN = ("SECRET_",)


def encodings(text):
    """Returns a text in all encodings that an echo may use."""
    data = text.encode()
    forms = [text, urllib.parse.quote(text, safe=""), urllib.parse.quote_plus(text), urllib.parse.quote(urllib.parse.quote(text))]
    forms += [json.dumps(text), json.dumps(json.dumps(text)), repr(text), html.escape(text), data.hex(), data.hex().upper()]
    forms += ["".join(f"\\u{ord(c):04x}" for c in text), "".join(f"%{byte:02x}" for byte in data)]
    forms += [base64.b64encode(b"abc"[:n] + data + b"xyz").decode() for n in range(3)]
    forms += [base64.urlsafe_b64encode(b"abc"[:n] + data).decode() for n in range(3)]
    return "\n".join(f"echo {form} ." for form in forms)


def own_values():
    values = [value for name, value in os.environ.items() if name.startswith(SEEN)]
    return "\n".join(encodings(value) for value in values + sys.argv[1:] if len(value) > 12)


def answer(method, params, echo):
    if method == "initialize":
        info = {"name": "echo", "version": "1"}
        return {"result": {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}}
    if method == "tools/list":
        schema = {"type": "object", "properties": {}}
        tool = {"description": "Echoes. " + echo, "inputSchema": schema, "annotations": {"readOnlyHint": True}}
        return {"result": {"tools": [{"name": "tell", **tool}, {"name": "refuse", **tool}]}}
    if method == "tools/call" and params["name"] == "tell":
        return {"result": {"content": [{"type": "text", "text": "told " + echo}]}}
    return {"error": {"code": -32602, "message": "refused " + echo}}


def model_reply(request, echo):
    """Calls each tool in the first turn, and answers with what it got."""
    message = {"role": "assistant", "content": "answer " + echo}
    tools = [tool["function"]["name"] for tool in request.get("tools", [])]
    if not any(message["role"] == "tool" for message in request["messages"]):
        function = lambda name: {"name": name, "arguments": "{}"}
        calls = [{"id": f"c{n}", "type": "function", "function": function(name)} for n, name in enumerate(tools)]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    return {"choices": [{"message": message, "finish_reason": reason}], "usage": usage}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        url = urllib.parse.urlsplit(self.path)
        values = [value for name, value in self.headers.items()]
        values += [value for _, value in urllib.parse.parse_qsl(url.query)] + url.path.split("/")
        if (self.headers.get("authorization") or "").startswith("Basic "):
            values.append(base64.b64decode(self.headers["authorization"][6:]).decode())
        echo = "\n".join(encodings(value) for value in values if len(value) > 12) + "\n" + self.path
        status, kind = 200, "application/json"
        if url.path.startswith("/mcp"):
            message = json.loads(body)
            if "id" not in message:
                self.send_response(202)
                self.send_header("content-length", "0")
                return self.end_headers()
            body = {"jsonrpc": "2.0", "id": message["id"], **answer(message["method"], message.get("params"), echo)}
        elif url.path.startswith("/v1"):
            body = model_reply(json.loads(body), echo)
        elif url.path.startswith("/refuse"):
            status, body = 400, {"error": echo}
        elif url.path.startswith("/data"):
            body = {"output": "told", "data": {"headers": dict(self.headers), "echo": echo}, "notes": echo[:500]}
        elif url.path.startswith("/wait"):
            body = {"wait_for": {"a": {"event": 5}}, "echo": echo}
        else:
            body = "told " + echo
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        if url.path.startswith("/cut"):
            secret = next(value for name, value in self.headers.items() if name.lower() == "x-literal")
            data = ("told and cut " + secret[:18]).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.send_error(405)

    def log_message(self, *_):
        pass


mode = sys.argv[1] if len(sys.argv) > 1 else ""
if mode.startswith("port="):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with open(mode[5:] + ".new", "w") as file:
        file.write(str(server.server_port))
    os.rename(mode[5:] + ".new", mode[5:])
    server.serve_forever()
elif mode == "program":
    sys.stdin.read()
    print(own_values(), file=sys.stderr, flush=True)
    if sys.argv[2] == "data":
        print(json.dumps({"output": "told " + own_values(), "data": {"values": own_values()}}))
    elif sys.argv[2] == "text":
        print("told " + own_values())
    else:
        sys.exit(3)
elif mode == "hook":
    call = json.load(sys.stdin)
    print(own_values(), file=sys.stderr)
    if call["event"] == "before_tool":
        print(json.dumps({"refuse": "told " + own_values()} if call["tool"].endswith("refuse") else {}))
    else:
        print(json.dumps({"text": call["text"] + " hooked " + own_values()}))
else:
    print(own_values(), file=sys.stderr, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            reply = answer(message["method"], message.get("params"), own_values())
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
