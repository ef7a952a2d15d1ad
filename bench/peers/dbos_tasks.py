"""DBOS with SQLite: workflows and their steps in a file."""

import importlib.metadata
import os

from dbos import DBOS, DBOSConfig

from shapes import read_sizes, report, start_and_wait, time_call

sizes = read_sizes()
store = os.path.join(sizes.folder, "dbos.sqlite")
config: DBOSConfig = {"name": "peer", "system_database_url": f"sqlite:///{store}", "log_level": "ERROR"}
DBOS(config=config)


@DBOS.step()
def echo(value):
    return value


@DBOS.workflow()
def run_one(value):
    return echo(value)


@DBOS.workflow()
def run_chain(length):
    value = 0
    for _ in range(length):
        value = echo(value)
    return value


def fan_out():
    handles = [DBOS.enqueue_workflow("tasks", run_one, number) for number in range(sizes.tasks)]
    for handle in handles:
        handle.get_result()


DBOS.launch()
DBOS.register_queue("tasks", global_concurrency=64, polling_interval_sec=0.05)
run_one(0)
fan_out_seconds = time_call(fan_out)
chain = time_call(lambda: run_chain(sizes.chain))
starts = start_and_wait(
    lambda number: DBOS.start_workflow(run_one, number).get_result(), sizes.starts, sizes.in_flight
)
report(importlib.metadata.version("dbos"), "a SQLite file", sizes, fan_out_seconds, chain, starts)
DBOS.destroy()
