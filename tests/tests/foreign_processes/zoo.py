"""Starts processes of every sort, then answers or stays: as a program, as a hook, or as an MCP server (`zoo.py mcp`). What to do
is in `next.json` beside it. It ignores all signals and the end of its input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
QUIET = "trap '' HUP INT TERM QUIT USR1 USR2"
SORTS = [
    "exec sleep MARK",
    "exec setsid sleep MARK",
    f"{QUIET}; exec sleep MARK",
    "(setsid sh -c 'sleep MARK & :' &); :",
    "sh -c 'sh -c \"sleep MARK; :\"; :'; :",
    "exec env -i /usr/bin/setsid /bin/sleep MARK",
    f"{QUIET}; (setsid sh -c '(env -i setsid sleep MARK &); :' &); :",
    "setsid sh -c 'while :; do sleep MARK; done' & :",
]

for name in ("SIGHUP", "SIGINT", "SIGTERM", "SIGQUIT"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)


def running(mark):
    count = 0
    for entry in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        count += b"sleep" in words[0] and mark.encode() in words
    return count


def start(mark):
    before = running(mark)
    for sort in SORTS:
        subprocess.Popen(["/bin/sh", "-c", sort.replace("MARK", mark)])
    while running(mark) < before + len(SORTS):
        time.sleep(0.02)
    with open(FOLDER / "started", "a") as started:
        started.write(mark + "\n")


def stay():
    while True:
        time.sleep(1)


def order():
    return json.loads((FOLDER / "next.json").read_text())


def answer(method, params):
    if method == "initialize":
        info = {"name": "zoo", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": "start", "description": "x", "inputSchema": {"type": "object", "properties": {}}}]}
    if method == "tools/call":
        start(order()["mark"])
        if order()["stays"]:
            stay()
        return {"content": [{"type": "text", "text": "started"}]}
    return {}


def serve():
    start(order()["server"])
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = answer(message["method"], message.get("params"))
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
    stay()


if sys.argv[1:] == ["mcp"]:
    serve()
sys.stdin.read()
start(order()["mark"])
if order()["stays"]:
    stay()
print("{}" if sys.argv[1:] == ["hook"] else "answered", flush=True)
