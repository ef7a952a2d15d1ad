"""A cluster and its gateways, as processes of the program in MILLRACE_PROGRAM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAM = os.environ.get("MILLRACE_PROGRAM", "")
KEEP = {"MILLRACE_NATS_SERVER", "MILLRACE_TEST_MARK"}
COUNT = """\
import json, os, sys
task = json.load(sys.stdin)
os.makedirs("out", exist_ok=True)
for name in ["count.txt", "a b/\\u00e4.txt"]:
    os.makedirs(os.path.dirname(os.path.join("out", name)), exist_ok=True)
    with open(os.path.join("out", name), "w") as file:
        file.write("three words here")
print(json.dumps({"summary": "3 words", "output": "The text has 3 words."}))
"""
CAPABILITY = """\
kind: command
name: count
description: Writes a file.
command: [python3, ./count.py]
files: {out: ["/out"]}
effect: pure
"""


def environment() -> dict[str, str]:
    """Returns the environment of the processes: without settings of the person who runs the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_") or name in KEEP}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Gateway:
    """A gateway on a port of its own, which stays the same when it is started again."""

    def __init__(self, cluster: Cluster) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = cluster.folder
        self._nats = cluster.settings()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        file = self._folder / "gateway.url"
        file.unlink(missing_ok=True)
        with (self._folder / "gateway.log").open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAM, "serve", "--api", f"127.0.0.1:{self.port}", "--url-file", str(file)] + ["--by", "ann"],
                env={**environment(), **self._nats},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_text().endswith("\n")):
            assert self._process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def log(self) -> str:
        return (self._folder / "gateway.log").read_text()


class Cluster:
    """A cluster on this machine with one worker, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self) -> None:
        (self.folder / "count.py").write_text(COUNT, encoding="utf-8")
        (self.folder / "count.yaml").write_text(CAPABILITY)
        self._millrace("up", "--detach", "--workers", "1", "--capability", str(self.folder / "count.yaml"))

    def settings(self) -> dict[str, str]:
        """Returns the variables by which other processes reach the server of the cluster."""
        cluster = json.loads((self.folder / "data" / "cluster.json").read_text())
        names = {"url": "URL", "user": "USER", "password": "PASSWORD"}
        return {f"MILLRACE_NATS_{name}": cluster[field] for field, name in names.items()}

    def stop(self) -> None:
        self._millrace("down")

    def _millrace(self, *arguments: str) -> str:
        command = [PROGRAM, *arguments, "--data", str(self.folder / "data")]
        process = subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert process.returncode == 0, f"{command}: {process.stdout}{process.stderr}"
        return process.stdout
