"""Celery with Redis: a broker and results on one server, two worker processes."""

import os
import subprocess
import sys
import time

import celery
from celery import Celery, chain, group

PORT = os.environ.get("PEER_REDIS_PORT", "16379")
app = Celery("celery_tasks", broker=f"redis://127.0.0.1:{PORT}/0", backend=f"redis://127.0.0.1:{PORT}/1")
app.conf.update(worker_prefetch_multiplier=64, task_acks_late=True, broker_connection_retry_on_startup=True)


@app.task
def echo(value):
    return value


def main():
    from shapes import read_sizes, report, start_and_wait, time_call

    sizes = read_sizes()
    redis = subprocess.Popen(
        ["redis-server", "--port", PORT, "--bind", "127.0.0.1", "--dir", sizes.folder, "--appendonly", "yes"],
        stdout=subprocess.DEVNULL,
    )
    worker = None
    try:
        time.sleep(1)
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--concurrency", "2", "--loglevel", "ERROR"],
            stdout=subprocess.DEVNULL,
        )
        group(echo.s(number) for number in range(100))().get(timeout=120, disable_sync_subtasks=False)
        fan_out = time_call(lambda: group(echo.s(number) for number in range(sizes.tasks))().get(timeout=600))
        # A signature of a chain contains all later ones, so its size grows with the square of the length.
        length = min(sizes.chain, 200)
        steps = [echo.s(0), *(echo.s() for _ in range(length - 1))]
        seconds = time_call(lambda: chain(*steps)().get(timeout=300)) * sizes.chain / length
        starts = start_and_wait(
            lambda number: echo.delay(number).get(timeout=120), sizes.starts, sizes.in_flight
        )
        durability = "Redis with an append-only file, synced once a second"
        report(celery.__version__, durability, sizes, fan_out, seconds, starts)
    finally:
        for process in (worker, redis):
            if process is not None:
                process.terminate()
                process.wait(30)


if __name__ == "__main__":
    main()
