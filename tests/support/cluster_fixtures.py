"""Fixtures of tests that run whole processes; a conftest.py imports those its folder uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, cluster
from tests.support.cluster_http import close_all


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Cluster]:
    """A running broker of the test's own; gateways and workers are the test's to start."""
    with cluster(tmp_path) as found:
        yield found


@pytest.fixture(autouse=True)
async def closes_connections() -> AsyncIterator[None]:
    """A test that fails must not make the next one fail."""
    yield
    await close_all()
