"""An MCP server for tests that works on the files of its folder: `files.py FOLDER`. It notes its starts outside of it, in the file
that the variable STARTS names."""

import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

folder = Path(sys.argv[1])
server = MCPServer("files")
with open(os.environ["STARTS"], "a") as starts:
    starts.write(f"{folder.samefile(os.getcwd())}\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def count(path: str) -> str:
    return f"{len(Path(path).read_text().split())} words in {Path(path).absolute()}"


@server.tool()
def upper(path: str) -> str:
    text = Path(path).read_text()
    Path(path).write_text(text.upper())
    (folder / "made").mkdir(exist_ok=True)
    (folder / "made" / "copy.txt").write_text(text)
    return "done"


server.run()
