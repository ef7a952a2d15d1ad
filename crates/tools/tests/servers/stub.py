"""An MCP server for tests, based on the official Python package: `stub.py FOLDER` uses stdio, `stub.py FOLDER PORT`
uses streamable HTTP on 127.0.0.1. Its tools log their calls to files in FOLDER."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

folder = Path(sys.argv[1])
server = MCPServer("stub")


def note(text):
    with open(folder / "notes", "a") as notes:
        notes.write(text + "\n")


async def wait(name, seconds):
    note(f"{name} begins")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(f"{name} cancelled")
        raise
    note(f"{name} ends")
    return f"{name} done"


@server.tool(description="Writes something slowly.")
async def write(seconds: float) -> str:
    return await wait("write", seconds)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def read(seconds: float) -> str:
    return await wait("read", seconds)


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
async def put(seconds: float) -> str:
    return await wait("put", seconds)


@server.tool(name="who.is-it")
def who() -> str:
    return f"{os.getpid()} {sorted(os.environ)}"


@server.tool()
def header(ctx: Context) -> str:
    return str(dict(ctx.headers or {}).get("x-test", "none"))


@server.tool()
def fail() -> str:
    raise ToolError("it never works")


@server.tool()
def flood(chars: int) -> str:
    return "x" * chars


@server.tool()
async def grow(ctx: Context) -> str:
    @server.tool()
    def grown() -> str:
        return "I am new"

    await ctx.session.send_tool_list_changed()
    return "grown"


@server.tool()
def child() -> str:
    return str(subprocess.Popen(["sleep", "98764"]).pid)


(folder / "pid").write_text(str(os.getpid()))
print("stub: ready", file=sys.stderr, flush=True)
if len(sys.argv) > 2:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
else:
    server.run("stdio")
