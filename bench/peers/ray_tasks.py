"""Ray: tasks in memory on local workers."""

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

from shapes import read_sizes, report, start_and_wait, time_call

sizes = read_sizes()
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")


@ray.remote
def echo(value):
    return value


def run_chain():
    value = echo.remote(0)
    for _ in range(sizes.chain - 1):
        value = echo.remote(value)
    ray.get(value)


ray.get([echo.remote(number) for number in range(200)])
fan_out = time_call(lambda: ray.get([echo.remote(number) for number in range(sizes.tasks)]))
chain = time_call(run_chain)
starts = start_and_wait(lambda number: ray.get(echo.remote(number)), sizes.starts, sizes.in_flight)
report(ray.__version__, "none: tasks and results in memory", sizes, fan_out, chain, starts)
ray.shutdown()
