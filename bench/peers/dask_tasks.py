"""Dask distributed: tasks in memory on two local worker processes."""

import distributed

from shapes import read_sizes, report, start_and_wait, time_call


def echo(value):
    return value


def main():
    sizes = read_sizes()
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    client = distributed.Client(cluster)

    def run_chain():
        value = client.submit(echo, 0, pure=False)
        for _ in range(sizes.chain - 1):
            value = client.submit(echo, value, pure=False)
        value.result()

    client.gather(client.map(echo, range(200), pure=False))
    fan_out = time_call(lambda: client.gather(client.map(echo, range(sizes.tasks), pure=False)))
    chain = time_call(run_chain)
    starts = start_and_wait(
        lambda number: client.submit(echo, number, pure=False).result(), sizes.starts, sizes.in_flight
    )
    report(distributed.__version__, "none: tasks and results in memory", sizes, fan_out, chain, starts)
    client.close()
    cluster.close()


if __name__ == "__main__":
    main()
