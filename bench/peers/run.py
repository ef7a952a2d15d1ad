#!/usr/bin/env python3
"""Measures other systems and Millrace on this machine, one after the other, and prints a table in Markdown."""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON_PEERS = {
    "ray": (["ray"], 1.0),
    "dask": (["dask", "distributed"], 1.0),
    "celery": (["celery", "redis", "packaging"], 0.5),
    "dbos": (["dbos"], 0.1),
}
# Sizes at scale 1; the second figure above scales them for slow peers.
TASKS, CHAIN, STARTS, IN_FLIGHT = 20_000, 1_000, 5_000, 64
TIMEOUT = 900


class Unavailable(Exception):
    """A peer that cannot be measured here, with the reason."""


def run_tool(command, **options):
    """Runs a command and returns what it prints; its failure makes the peer unavailable."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        errors = [line for line in lines if "Error" in line] or lines or [f"exit status {done.returncode}"]
        raise Unavailable(f"{Path(command[0]).name} failed: {errors[-1][:300]}")
    return done.stdout


def find_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_url(url, seconds=60):
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return response.read()
        except OSError as error:
            if time.monotonic() > end:
                raise Unavailable(f"{url} does not respond: {error}") from error
            time.sleep(0.2)


def post_json(url, value, timeout=TIMEOUT):
    request = urllib.request.Request(url, json.dumps(value).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.loads(response.read() or b"null")


class Processes:
    """The processes of one peer; they are stopped in the end."""

    def __init__(self, log):
        self.log, self.all = log, []

    def start(self, command, **options):
        with open(self.log, "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **options)
        self.all.append(process)
        return process

    def stop(self):
        for process in reversed(self.all):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)


def measure_python_peer(name, folder, scale):
    packages, factor = PYTHON_PEERS[name]
    if name == "celery" and shutil.which("redis-server") is None:
        raise Unavailable("redis-server is not on the PATH")
    environment = folder / name / "venv"
    python = environment / "bin" / "python"
    if not python.exists():
        run_tool([sys.executable, "-m", "venv", str(environment)])
    run_tool([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
    sizes = {
        "tasks": max(int(TASKS * scale * factor), 100),
        "chain": max(int(CHAIN * scale * factor), 50),
        "starts": max(int(STARTS * scale * factor), 100),
    }
    with tempfile.TemporaryDirectory(dir=folder) as store:
        arguments = [f"--{key}={value}" for key, value in sizes.items()]
        script = HERE / f"{name}_tasks.py"
        output = run_tool([str(python), str(script), *arguments, f"--in-flight={IN_FLIGHT}", f"--folder={store}"], cwd=HERE)
    return json.loads(output.strip().splitlines()[-1]) | sizes


def measure_restate(folder, scale):
    if shutil.which("npm") is None:
        raise Unavailable("npm is not on the PATH")
    place = folder / "restate"
    shutil.copytree(HERE / "restate", place, dirs_exist_ok=True)
    run_tool(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=place)
    version = json.loads((place / "node_modules/@restatedev/restate-server/package.json").read_text())["version"]
    ingress, admin, service, node = (find_free_port() for _ in range(4))
    sizes = {"tasks": max(int(TASKS * scale * 0.1), 100), "chain": max(int(CHAIN * scale * 0.5), 50), "starts": max(int(STARTS * scale), 100)}
    with tempfile.TemporaryDirectory(dir=folder) as store:
        processes = Processes(folder / "restate.log")
        try:
            settings = {
                "RESTATE_BASE_DIR": store,
                "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
                "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
                "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
                "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}/",
                "RESTATE_LOG_FILTER": "warn",
                "DO_NOT_TRACK": "1",
            }
            processes.start(["node", "service.mjs"], cwd=place, env=os.environ | {"PORT": str(service)})
            processes.start(["node_modules/.bin/restate-server"], cwd=place, env=os.environ | settings)
            wait_for_url(f"http://127.0.0.1:{admin}/health")
            post_json(f"http://127.0.0.1:{admin}/deployments", {"uri": f"http://127.0.0.1:{service}"})
            base = f"http://127.0.0.1:{ingress}"
            post_json(f"{base}/shapes/fanOut", 50)
            start = time.perf_counter()
            post_json(f"{base}/shapes/fanOut", sizes["tasks"])
            fan_out = time.perf_counter() - start
            start = time.perf_counter()
            post_json(f"{base}/shapes/chain", sizes["chain"])
            chain = time.perf_counter() - start
            load = run_tool(["node", str(HERE / "http_load.mjs"), "restate", base, str(sizes["starts"]), str(IN_FLIGHT)])
        finally:
            processes.stop()
    figures = {"version": version, "durability": "its own log on disk", "fan_out_per_s": sizes["tasks"] / fan_out, "chain_ms": chain / sizes["chain"] * 1000}
    return figures | json.loads(load) | sizes


def measure_millrace(millrace, folder, scale):
    sizes = {"tasks": max(int(TASKS * scale), 100), "chain": max(int(CHAIN * scale), 50), "starts": max(int(STARTS * scale), 100)}
    version = run_tool([millrace, "--version"]).split()[-1]
    bench = [millrace, "bench", "--json", "--rounds", "1"]
    fan_out = json.loads(run_tool([*bench, "fan_out", "--tasks", str(sizes["tasks"])]))["fan_out"]
    chain = json.loads(run_tool([*bench, "chain", "--tasks", str(sizes["chain"])]))["chain"]
    figures = {
        "version": version,
        "durability": "a JetStream log on disk",
        "fan_out_per_s": fan_out["figure"],
        "chain_ms": chain["figure"],
    }
    if shutil.which("node") is None:
        return figures | sizes
    with tempfile.TemporaryDirectory(dir=folder) as store:
        processes = Processes(folder / "millrace.log")
        port = find_free_port()
        try:
            processes.start([millrace, "up", "--data", store, "--api", f"127.0.0.1:{port}"])
            base = f"http://127.0.0.1:{port}"
            wait_for_url(f"{base}/api/v1/health")
            load = run_tool(["node", str(HERE / "http_load.mjs"), "millrace", base, str(sizes["starts"]), str(IN_FLIGHT)])
        finally:
            processes.stop()
    return figures | json.loads(load) | sizes


def format_row(name, figures, load):
    def figure(key, form):
        return form.format(figures[key]) if key in figures else "-"

    cells = [
        f"{name} {figures['version']}",
        figures["durability"],
        figure("fan_out_per_s", "{:,.0f}"),
        figure("chain_ms", "{:.2f}"),
        figure("starts_per_s", "{:,.0f}"),
        figure("start_p50_ms", "{:.1f}"),
        f"{load:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millrace", default="target/release/millrace", help="the program to measure")
    parser.add_argument("--folder", type=Path, default=Path("target/peers"), help="where the peers are installed")
    parser.add_argument("--only", default="", help="names of peers, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all sizes")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    millrace = shutil.which(arguments.millrace) or str(Path(arguments.millrace).resolve())
    peers = {name: lambda name=name: measure_python_peer(name, folder, arguments.scale) for name in PYTHON_PEERS}
    peers["restate"] = lambda: measure_restate(folder, arguments.scale)
    peers["millrace"] = lambda: measure_millrace(millrace, folder, arguments.scale)
    wanted = [name for name in arguments.only.split(",") if name] or list(peers)
    unknown = [name for name in wanted if name not in peers]
    if unknown:
        parser.error(f"unknown peers: {', '.join(unknown)}; there are {', '.join(peers)}")
    rows, results = [], {}
    for name in wanted:
        print(f"{name} …", file=sys.stderr, flush=True)
        load = os.getloadavg()[0]
        try:
            figures = peers[name]()
        except Unavailable as reason:
            print(f"skipped {name}: {reason}", file=sys.stderr, flush=True)
            continue
        results[name] = figures | {"load_before": load}
        rows.append(format_row(name, figures, load))
    (folder / "figures.json").write_text(json.dumps(results, indent=1))
    print("| system | durability | fan-out, tasks/s | a dependent task, ms | start and wait, jobs/s | p50, ms | load before |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
