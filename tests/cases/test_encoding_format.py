"""`encoding_format` and the forms of `input`, over a real worker, asked by hand and by OpenAI's own client."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from tests.support.cluster import Cluster, cluster
from tests.support.cluster_http import Answered, Connection

TEXTS = ["one", "naïve 日本語 🙂", " ", "a" * 300, "one"]


def vector(text: str) -> np.ndarray:
    """What `embed8` answers for a text."""
    words = np.frombuffer(hashlib.sha256(text.encode()).digest(), "<u4").astype(np.float64) / 2**31 - 1
    return (words / np.linalg.norm(words)).astype(np.float32)


@pytest.fixture(scope="module")
def embed8(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("embed8")) as place:
        place.serve("embed8", "embed8_bytes")
        yield place


@pytest.fixture
def port(embed8: Cluster) -> int:
    found: int = embed8.parts[0].http_port  # type: ignore[attr-defined]
    return found


@pytest.fixture
def client(port: int) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as made:
        yield made


async def ask(port: int, path: str = "embeddings", **fields: Any) -> Answered:
    connection = Connection(port)
    body = json.dumps({"model": "embed8", **fields}).encode()
    try:
        return await connection.ask("POST", f"/v1/{path}", body)
    finally:
        connection.close()


def refused(answer: Answered, param: str | None) -> str:
    assert answer.status == 400, answer.body
    error = answer.json["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    message: str = error["message"]
    return message


@pytest.mark.parametrize("fields", [{}, {"encoding_format": "float"}, {"encoding_format": None}])
async def test_floats_are_numbers_in_json(port: int, fields: dict[str, Any]) -> None:
    found = (await ask(port, input=TEXTS, **fields)).json
    assert [item["index"] for item in found["data"]] == list(range(len(TEXTS)))
    for text, item in zip(TEXTS, found["data"], strict=True):
        assert np.array(item["embedding"], np.float32).tobytes() == vector(text).tobytes()
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert found["usage"] == {"prompt_tokens": num_bytes, "total_tokens": num_bytes}


async def test_base64_is_32_bytes_equal_to_the_floats(port: int) -> None:
    found = (await ask(port, input=TEXTS, encoding_format="base64")).json
    for text, item in zip(TEXTS, found["data"], strict=True):
        raw = base64.b64decode(item["embedding"], validate=True)
        assert len(raw) == 8 * 4
        assert raw == vector(text).astype("<f4").tobytes()


async def test_another_encoding_is_refused_by_name(port: int) -> None:
    assert "'bogus'" in refused(await ask(port, input="a", encoding_format="bogus"), "encoding_format")


@pytest.mark.parametrize(
    ("value", "texts", "num_tokens"),
    [
        ("one", ["one"], 3),
        (["one", "two!"], ["one", "two!"], 7),
        (list(b"one"), ["one"], 3),
        ([list(b"one"), list(b"two!")], ["one", "two!"], 7),
    ],
)
async def test_the_four_forms_of_input_mean_the_same(port: int, value: Any, texts: list[str], num_tokens: int) -> None:
    found = (await ask(port, input=value)).json
    vectors = [np.array(item["embedding"], np.float32) for item in found["data"]]
    assert [v.tobytes() for v in vectors] == [vector(text).tobytes() for text in texts]
    assert found["usage"]["prompt_tokens"] == num_tokens


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([], "empty list"),
        ("", "empty string"),
        (["a", ""], "input[1] is an empty string"),
        (["a"] * 2049, "at most 2048"),
        ([[256]], "id 256"),
    ],
)
async def test_an_input_that_cannot_be_is_refused_by_its_place(port: int, value: Any, named: str) -> None:
    assert named in refused(await ask(port, input=value), "input")


async def test_as_many_inputs_as_there_may_be_are_answered(port: int) -> None:
    texts = [f"text {n}" for n in range(2048)]
    found = (await ask(port, input=texts)).json
    vectors = [np.array(item["embedding"], np.float32).tobytes() for item in found["data"]]
    assert vectors == [vector(text).tobytes() for text in texts]
    assert found["usage"]["prompt_tokens"] == sum(map(len, texts))


async def test_a_text_over_the_models_limit_is_named_with_both_numbers(port: int) -> None:
    for value in (["a", "b" * 513], [list(b"a"), [65] * 513]):
        answer = await ask(port, input=value)
        message = refused(answer, "input")
        assert answer.json["error"]["code"] == "context_length_exceeded"
        assert message.startswith("input[1]: ")
        assert "513" in message
        assert "512" in message


async def test_one_bad_text_among_many_is_named(port: int) -> None:
    answer = await ask(port, input=["a", "b", "#666", "c"])
    assert answer.status == 500
    assert answer.json["error"]["message"].startswith("input[2]: ")
    assert (await ask(port, input=["a", "b"])).status == 200


async def test_a_model_that_reads_text_itself_embeds_too_and_counts_no_tokens(port: int) -> None:
    found = (await ask(port, input=TEXTS, model="embed8_bytes")).json
    assert np.array(found["data"][1]["embedding"], np.float32).tobytes() == vector(TEXTS[1]).tobytes()
    assert found["usage"]["prompt_tokens"] == 0
    assert "no token arrays" in refused(await ask(port, input=[1, 2], model="embed8_bytes"), "input")


# -------- OpenAI's own client
def test_the_client_reads_what_it_asks_for_by_itself(client: openai.OpenAI) -> None:
    """Left alone it asks for base64 and decodes that."""
    found = client.embeddings.create(model="embed8", input=TEXTS)
    assert [item.index for item in found.data] == list(range(len(TEXTS)))
    for text, item in zip(TEXTS, found.data, strict=True):
        assert np.array(item.embedding, np.float32).tobytes() == vector(text).tobytes()
    assert (found.model, found.usage.prompt_tokens) == ("embed8", sum(len(text.encode()) for text in TEXTS))


def test_the_client_reads_floats_and_fewer_dimensions(client: openai.OpenAI) -> None:
    floats = client.embeddings.create(model="embed8", input="one", encoding_format="float").data[0].embedding
    np.testing.assert_array_equal(np.array(floats, np.float32), vector("one"))
    four = np.array(client.embeddings.create(model="embed8", input="one", dimensions=4).data[0].embedding)
    np.testing.assert_allclose(four, vector("one")[:4] / np.linalg.norm(vector("one")[:4]), rtol=1e-6)


def test_the_client_sends_tokens(client: openai.OpenAI) -> None:
    found = client.embeddings.create(model="embed8", input=[list(b"one"), list(b"naive")])
    np.testing.assert_array_equal(np.array(found.data[0].embedding, np.float32), vector("one"))


def test_the_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="embed8", input=["a", ""])
    assert (refused.value.param, refused.value.type) == ("input", "invalid_request_error")
    assert "input[1] is an empty string" in refused.value.message
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="nothing", input="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.embeddings.create(model="embed8", input="a" * 600)
    assert long.value.code == "context_length_exceeded"


def test_the_client_does_not_repeat_what_cannot_be_mended(port: int) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=2) as patient:
        with pytest.raises(openai.InternalServerError) as failed:
            patient.embeddings.create(model="embed8", input="#666")
        assert failed.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_the_client_lists_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["embed8", "embed8_bytes"]
    assert client.models.retrieve("embed8").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


async def test_the_asyncio_client_asks_many_at_once(port: int) -> None:
    import asyncio

    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as many:
        calls = [many.embeddings.create(model="embed8", input=f"text {n}") for n in range(100)]
        found = await asyncio.gather(*calls)
    for n, answer in enumerate(found):
        np.testing.assert_array_equal(np.array(answer.data[0].embedding, np.float32), vector(f"text {n}"))
