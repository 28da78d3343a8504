"""Fixtures of the fault tests: a cluster of processes of the test's own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, cluster
from tests.support.cluster_http import close_all


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Cluster]:
    """A running broker; gateways and workers are the test's to start."""
    with cluster(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Likewise for all tests of a file, where none of them harms what the others need."""
    with cluster(tmp_path_factory.mktemp("shared")) as found:
        yield found


@pytest.fixture(autouse=True)
async def closes_connections() -> AsyncIterator[None]:
    """A test that fails must not make the next one fail."""
    yield
    await close_all()
