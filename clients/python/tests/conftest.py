"""The fixtures: a cluster for all tests that need one, and a gateway for each of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster import PROGRAM, Cluster, Gateway  # noqa: E402


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not PROGRAM:
        pytest.skip("MILLRACE_PROGRAM does not name the program millrace, which starts the cluster of this test")
    instance = Cluster(tmp_path_factory.mktemp("cluster"))
    instance.start()
    yield instance
    instance.stop()


@pytest.fixture
def gateway(cluster: Cluster) -> Iterator[Gateway]:
    instance = Gateway(cluster)
    instance.start()
    yield instance
    instance.stop()
