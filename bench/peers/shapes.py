"""The shapes that every Python peer runs, and how they are timed."""

import argparse
import json
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor


def read_sizes():
    """Returns the sizes that `run.py` passes to each peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, required=True, help="independent tasks of the fan-out")
    parser.add_argument("--chain", type=int, required=True, help="tasks that each depend on the one before")
    parser.add_argument("--starts", type=int, required=True, help="small jobs that are started and awaited")
    parser.add_argument("--in-flight", type=int, default=64, help="small jobs that are in flight at once")
    parser.add_argument("--folder", required=True, help="folder for stores")
    return parser.parse_args()


def time_call(call):
    """Returns the seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def start_and_wait(run_one, starts, in_flight):
    """Calls `run_one(number)` for each number, `in_flight` at once; returns jobs per second and the median time in ms."""
    times, lock = [], threading.Lock()

    def timed(number):
        took = time_call(lambda: run_one(number))
        with lock:
            times.append(took)

    with ThreadPoolExecutor(in_flight) as pool:
        total = time_call(lambda: list(pool.map(timed, range(starts))))
    return starts / total, statistics.median(times) * 1000


def report(version, durability, sizes, fan_out, chain, starts):
    """Prints the figures of a peer; `fan_out` and `chain` in seconds."""
    per_second, median = starts
    figures = {
        "version": version,
        "durability": durability,
        "fan_out_per_s": sizes.tasks / fan_out,
        "chain_ms": chain / sizes.chain * 1000,
        "starts_per_s": per_second,
        "start_p50_ms": median,
    }
    print(json.dumps(figures), flush=True)
