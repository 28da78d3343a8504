"""Fixtures of the fault tests: a cluster of processes of the test's own."""

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, cluster
from tests.support.cluster_fixtures import closes_connections, place

__all__ = ["closes_connections", "place", "shared_place"]


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Likewise for all tests of a file, where none of them harms what the others need."""
    with cluster(tmp_path_factory.mktemp("shared")) as found:
        yield found
