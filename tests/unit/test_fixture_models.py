"""The fixtures under tests/models do what their configs say, so that other tests can build on them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from contract.errors import ModelFailed
from workers.backends.base import InstanceRequest, ModelInstance, RequestResult
from workers.backends.registry import load_instance
from workers.repository.instances import instance_sources
from workers.repository.read import read_model, read_repository

FIXTURES = Path(__file__).parents[1] / "models"
Load = Callable[[str], ModelInstance]


@pytest.fixture
def load() -> Iterator[Load]:
    instances: list[ModelInstance] = []

    def make(name: str) -> ModelInstance:
        instances.append(load_instance(next(instance_sources(read_model(FIXTURES / name), "1"))))
        return instances[-1]

    yield make
    for instance in instances:
        instance.close()


def floats(*values: float, request_id: str = "") -> InstanceRequest:
    return InstanceRequest({"INPUT0": np.array([[v] for v in values], np.float32)}, (), request_id)


def output(result: RequestResult, name: str = "OUTPUT0") -> list:
    assert isinstance(result, dict), result
    return result[name].tolist()


def test_every_fixture_can_be_read() -> None:
    entries = read_repository(FIXTURES)
    assert len(entries) > 20
    assert [(entry.name, entry.reason) for entry in entries if entry.reason] == []


def test_slow_5_sleeps_and_counts(load: Load) -> None:
    instance = load("slow_5")
    started_s = time.monotonic()
    first = instance.run_requests([floats(1, 2), floats(3)])
    assert time.monotonic() - started_s >= 0.005
    assert output(first[0], "ROWS") == [[3], [3]]
    assert output(first[1], "EXECUTIONS") == [[1]]
    assert output(instance.run_requests([floats(1)])[0], "EXECUTIONS") == [[2]]


def test_an_execution_leaves_a_line_in_the_counter_folder(load: Load, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HEADRACE_COUNTER_DIR", str(tmp_path))
    instance = load("poison")
    instance.run_requests([floats(1, 2, request_id="a"), floats(3, request_id="b")])
    with pytest.raises(ModelFailed):
        instance.run_requests([floats(666)])
    lines = [json.loads(line) for line in (tmp_path / "poison.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["rows"], line["ids"]) for line in lines] == [([2, 1], ["a", "b"]), ([1], [""])]


def test_poison_fails_whoever_is_in_the_execution_and_refuse_only_the_guilty(load: Load) -> None:
    with pytest.raises(ModelFailed, match="a row begins with 666"):
        load("poison").run_requests([floats(1), floats(666)])
    innocent, guilty = load("refuse").run_requests([floats(1), floats(2, 666)])
    assert output(innocent) == [[1]]
    assert isinstance(guilty, ModelFailed)


def test_ident_bytes_keeps_every_element(load: Load) -> None:
    elements = np.array([t.encode() for t in ("plain", "naïve", "日本語", "🙂", "a\0b", "\u2019")], object)
    (found,) = load("ident_bytes").run_requests([InstanceRequest({"INPUT0": elements}, ())])
    assert output(found) == elements.tolist()


def test_embed8_is_the_same_unit_vector_for_the_same_text(load: Load) -> None:
    texts = np.array([[b"one"], [b"two"], [b"one"], [b""]], object)
    (found,) = load("embed8_bytes").run_requests([InstanceRequest({"TEXT": texts}, ())])
    assert isinstance(found, dict)
    vectors = found["EMBEDDING"]
    assert (vectors.dtype, vectors.shape) == (np.float32, (4, 8))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    assert (vectors[0] == vectors[2]).all()
    assert (vectors[0] != vectors[1]).any()


def test_slow_load_takes_its_time(load: Load) -> None:
    started_s = time.monotonic()
    load("slow_load")
    assert time.monotonic() - started_s >= 2.0
