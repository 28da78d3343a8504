"""The built models behind a real gateway and worker: text in, and the version that a request names answers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from headrace.client import Client
from tests.support.cluster import cluster
from tests.support.cluster_parts import wait_until

REPOSITORY = Path(__file__).parents[2] / "model_repository"
MODELS = ("sentiment", "intent", "minilm", "magika")
READY_WITHIN_S = 60
TEXTS = ["worst update ever :(", "Thanks, that fixed it for me!"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    assert all((REPOSITORY / model / "1" / "model.onnx").exists() for model in MODELS), "run make models"
    with cluster(tmp_path_factory.mktemp("built")) as place:
        gateway = place.start_gateway()
        place.start_pool(MODELS, repository=REPOSITORY)
        place.wait_ready(gateway, *MODELS)
        with Client(f"http://127.0.0.1:{gateway.http_port}") as made:
            for model, version in (("sentiment", "1"), ("sentiment", "2"), ("minilm", "2")):
                wait_until(partial(made.is_ready, model, version), f"{model} {version} is ready", READY_WITHIN_S)
            yield made


def test_two_versions_of_sentiment_answer_side_by_side_and_the_newer_by_default(client: Client) -> None:
    assert client.metadata("sentiment")["versions"] == ["1", "2"]
    first, second, newest = (client.infer("sentiment", version=v, text=TEXTS) for v in ("1", "2", ""))
    assert (first.version, second.version, newest.version) == ("1", "2", "2")
    assert np.abs(first.outputs["logits"] - second.outputs["logits"]).max() > 0.1
    np.testing.assert_allclose(second.outputs["logits"], newest.outputs["logits"], atol=1e-5)
    assert second.outputs["logits"].argmax(1).tolist() == [0, 2]


def test_minilm_answers_in_fp32_unless_the_int8_version_is_named(client: Client) -> None:
    exact, int8 = (client.infer("minilm", version=v, text=TEXTS) for v in ("", "2"))
    assert (exact.version, int8.version) == ("1", "2")
    cosines = (exact.outputs["sentence_embedding"] * int8.outputs["sentence_embedding"]).sum(1)
    assert (cosines > 0.95).all()
    assert (cosines < 0.99999).all()


def test_intent_takes_text_and_magika_bytes(client: Client) -> None:
    assert client.infer("intent", text=["turn off the kitchen lights"]).outputs["logits"].argmax() == 2
    nothing = np.full((1, 2048), 256, np.int32)
    assert client.infer("magika", bytes=nothing).outputs["target_label"].shape == (1, 214)
