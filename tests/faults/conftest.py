"""Fixtures of the fault tests: a cluster of processes of the test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, cluster


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Cluster]:
    """A running broker; gateways and workers are the test's to start."""
    with cluster(tmp_path) as found:
        yield found
