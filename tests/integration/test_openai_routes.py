"""The OpenAI routes on a real HTTP door before a core that embeds by hand: what it is asked, when, and how it ends."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import numpy as np
import pytest

from contract.errors import (
    DeadlineExceeded,
    Forbidden,
    HeadraceError,
    InvalidInput,
    ModelFailed,
    ModelNotReady,
    NotFound,
    NoWorker,
    QueueFull,
)
from contract.messages import TensorHead
from contract.model_config import ModelCard, ModelConfig, TensorSpec, VersionState
from contract.principal import Principal
from contract.tensors import decode_elements
from gateway.core import Answer, Done, InferRequest, Target
from gateway.http.server import HttpDoor
from gateway.openai.fanout import MAX_OPEN
from tests.support.http_kit import HOST, EchoCore, open_door

WITHIN_S = 20.0
EMBED = ModelCard(
    ModelConfig(
        "embed",
        "onnxruntime",
        max_batch_size=4,
        inputs=(TensorSpec("input_ids", "INT64", (-1,)), TensorSpec("attention_mask", "INT64", (-1,))),
        outputs=(TensorSpec("embedding", "FP32", (2,)),),
        parameters={"tokenizer": "t.json", "max_tokens": "100"},
    ),
    (VersionState("1", "READY"), VersionState("2", "READY")),
)
CLASSIFIER = ModelCard(
    ModelConfig("classify", "python", max_batch_size=4, inputs=(TensorSpec("text", "BYTES", (1,)),)),
    (VersionState("1", "READY"),),
)
LOADING = ModelCard(ModelConfig("loading", "python"), (VersionState("1", "LOADING"),))
CARDS = {card.config.name: card for card in (EMBED, CLASSIFIER, LOADING)}


class Open:
    """One request in the core."""

    def __init__(self, request: InferRequest, done: Done, on_cancel: Callable[[], None]) -> None:
        self.request = request
        self.is_cancelled = False
        self._on_cancel = on_cancel
        self._done: Done | None = done

    @property
    def texts(self) -> list[str]:
        (head,) = self.request.heads
        return [e.decode() for e in decode_elements(head.name, self.request.data[0], self.request.rows)]

    def answer(self, outcome: Answer | HeadraceError | None = None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome or self.embedded())

    def cancel(self) -> None:
        self.is_cancelled = True
        self._done = None
        self._on_cancel()

    def embedded(self) -> Answer:
        """A text's vector is [its length, 1]; it has as many tokens as characters."""
        texts = self.texts if self.request.heads[0].datatype == "BYTES" else [""] * self.request.rows
        vectors = np.array([[len(text), 1] for text in texts], np.float32)
        heads = (TensorHead("embedding", "FP32", vectors.shape),)
        parameters: dict[str, Any] = {"num_tokens": sum(map(len, texts))}
        if cut := sum(len(text) > 100 for text in texts):
            parameters["num_truncated"] = cut
        return Answer("embed", "2", heads, [memoryview(vectors.tobytes())], parameters, 1, 1, len(texts))


class EmbedCore(EchoCore):
    """Embeds at once unless it is holding."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[Open] = []
        self.failing: Callable[[Open], HeadraceError | None] = lambda _: None
        self.news = asyncio.Event()

    def resolve(self, principal: Principal, service: str, model: str, version: str) -> Target:
        card = CARDS.get(model)
        if card is None or (version and version not in card.ready_versions):
            raise NotFound(f"model {model!r} is not known")
        if not card.ready_versions:
            raise ModelNotReady(f"model {model!r} is loading")
        return Target("default", "default", card, version)

    def models(self, service: str = "") -> list[tuple[str, ModelCard]]:
        return [("default", card) for card in CARDS.values()]

    def submit(self, target: Target, request: InferRequest, done: Done) -> Any:
        opened = Open(request, done, self.news.set)
        self.opened.append(opened)
        self.requests.append(request)
        if not self.is_holding:
            opened.answer(self.failing(opened))
        self.news.set()
        return opened

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                self.news.clear()
                await self.news.wait()


@pytest.fixture
def core() -> EmbedCore:
    return EmbedCore()


@pytest.fixture
async def http(door: HttpDoor) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{door.port}", timeout=WITHIN_S) as client:
        yield client


def body(value: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "embed", "input": value, **fields}


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    found = response.json()
    assert set(found) == {"error"}
    assert set(found["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = found["error"]
    return error


async def test_vectors_come_in_the_callers_order_whatever_the_portions(
    http: httpx.AsyncClient, core: EmbedCore
) -> None:
    texts = ["a" * n for n in (3, 90, 1, 50, 7, 2, 99, 4, 5, 6)]
    found = (await http.post("/v1/embeddings", json=body(texts))).json()
    assert [item["embedding"] for item in found["data"]] == [[len(text), 1] for text in texts]
    assert [item["index"] for item in found["data"]] == list(range(10))
    assert found["usage"] == {"prompt_tokens": sum(map(len, texts)), "total_tokens": sum(map(len, texts))}
    assert all(request.rows <= 4 for request in core.requests)
    assert 1 < len(core.requests) < 10
    assert all(request.outputs == ("embedding",) for request in core.requests)


async def test_token_arrays_go_as_ids_and_are_counted_here(http: httpx.AsyncClient, core: EmbedCore) -> None:
    found = (await http.post("/v1/embeddings", json=body([[5, 6, 7], [8]]))).json()
    assert found["usage"]["prompt_tokens"] == 4
    (request,) = core.requests
    assert [head.name for head in request.heads] == ["input_ids", "attention_mask"]
    assert np.frombuffer(request.data[0], np.int64).tolist() == [5, 6, 7, 8, 0, 0]


async def test_base64_is_asked_for_and_cut_to_dimensions(http: httpx.AsyncClient) -> None:
    found = (await http.post("/v1/embeddings", json=body("abc", encoding_format="base64", dimensions=1))).json()
    assert np.frombuffer(base64.b64decode(found["data"][0]["embedding"]), "<f4").tolist() == [1.0]
    error = error_of(await http.post("/v1/embeddings", json=body("abc", dimensions=3)), 400)
    assert (error["param"], error["message"]) == ("dimensions", "dimensions is 3, model 'embed' has 2")


async def test_a_bounded_number_of_requests_is_open_at_a_time(http: httpx.AsyncClient, core: EmbedCore) -> None:
    core.is_holding = True
    call = asyncio.create_task(http.post("/v1/embeddings", json=body(["a" * 90] * 400)))
    await core.until(lambda: len(core.opened) == MAX_OPEN)
    core.opened[0].answer()
    await core.until(lambda: len(core.opened) == MAX_OPEN + 1)
    core.is_holding = False
    for opened in list(core.opened):
        opened.answer()
    assert len((await call).json()["data"]) == 400
    ids = [request.request_id for request in core.requests]
    assert len(set(ids)) == len(ids)


async def test_the_one_input_at_fault_is_named_and_its_mates_are_not_to_blame(
    http: httpx.AsyncClient, core: EmbedCore
) -> None:
    core.failing = lambda opened: ModelFailed("it raised") if "bad" in opened.texts else None
    response = await http.post("/v1/embeddings", json=body(["one", "two", "bad", "six"]))
    error = error_of(response, 500)
    assert error["message"] == "input[2]: it raised"
    assert error["code"] == "model_failed"
    assert response.headers["x-should-retry"] == "false"
    core.failing = lambda opened: InvalidInput("row 0 is bad") if "bad" in opened.texts else None
    error = error_of(await http.post("/v1/embeddings", json=body("bad")), 400)
    assert (error["message"], error["param"]) == ("input: row 0 is bad", "input")


async def test_a_portion_that_only_fails_together_is_answered_one_by_one(
    http: httpx.AsyncClient, core: EmbedCore
) -> None:
    core.failing = lambda opened: ModelFailed("too many") if opened.request.rows > 1 else None
    found = (await http.post("/v1/embeddings", json=body(["one", "three", "four"]))).json()
    assert [item["embedding"][0] for item in found["data"]] == [3, 5, 4]


async def test_a_model_with_a_short_queue_gets_fewer_requests_at_a_time(
    http: httpx.AsyncClient, core: EmbedCore
) -> None:
    loop, num_open = asyncio.get_running_loop(), 0

    def close(opened: Open) -> None:
        nonlocal num_open
        num_open -= 1
        opened.answer()

    def submit(target: Target, request: InferRequest, done: Done) -> Open:
        nonlocal num_open
        opened = Open(request, done, core.news.set)
        core.requests.append(request)
        if num_open == 3:
            opened.answer(QueueFull("3 requests wait"))
        else:
            num_open += 1
            loop.call_later(0.001, close, opened)
        return opened

    core.submit = submit  # type: ignore[method-assign]
    texts = ["a" * n for n in range(1, 101)]
    found = (await http.post("/v1/embeddings", json=body(texts))).json()
    assert [item["embedding"][0] for item in found["data"]] == list(range(1, 101))
    assert 25 < len(core.requests) < 25 + MAX_OPEN
    core.submit = lambda _t, request, done: done(QueueFull("full"))  # type: ignore[method-assign,assignment]
    error_of(await http.post("/v1/embeddings", json=body(texts)), 503)


async def test_all_vectors_of_a_call_are_of_one_version(http: httpx.AsyncClient, core: EmbedCore) -> None:
    def submit(target: Target, request: InferRequest, done: Done) -> Open:
        opened = Open(request, done, core.news.set)
        core.requests.append(request)
        targets.append(target.version)
        answer = opened.embedded()
        answer.version = target.version or ("1" if len(core.requests) < 20 else "2")
        opened.answer(answer)
        return opened

    targets: list[str] = []
    core.submit = submit  # type: ignore[method-assign]
    texts = ["a" * n for n in range(1, 101)]
    found = (await http.post("/v1/embeddings", json=body(texts))).json()
    assert [item["embedding"][0] for item in found["data"]] == list(range(1, 101))
    assert found["usage"]["prompt_tokens"] == sum(range(1, 101))
    assert targets == [""] * 25 + ["2"] * 19


@pytest.mark.parametrize(
    ("error", "status"), [(NoWorker("no"), 503), (DeadlineExceeded("no"), 504), (Forbidden("no"), 403)]
)
async def test_our_state_ends_a_call_at_once_and_cancels_the_rest(
    http: httpx.AsyncClient, core: EmbedCore, error: HeadraceError, status: int
) -> None:
    core.is_holding = True
    call = asyncio.create_task(http.post("/v1/embeddings", json=body(["a" * 90] * 20)))
    await core.until(lambda: len(core.opened) >= 5)
    core.opened[2].answer(error)
    response = await call
    assert error_of(response, status)["message"] == "no"
    assert ("retry-after" in response.headers) == (status == 503)
    await core.until(lambda: all(o.is_cancelled for i, o in enumerate(core.opened) if i != 2))


async def test_a_caller_that_leaves_cancels_everything_open(door: HttpDoor, core: EmbedCore) -> None:
    core.is_holding = True
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{door.port}") as client:
        call = asyncio.create_task(client.post("/v1/embeddings", json=body(["a"] * 6)))
        await core.until(lambda: len(core.opened) == 2)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await core.until(lambda: all(opened.is_cancelled for opened in core.opened))
    assert door.doorway.counters.requests == {("embed", "cancelled"): 1}


async def test_the_clients_own_patience_is_the_deadline(http: httpx.AsyncClient, core: EmbedCore) -> None:
    loop = asyncio.get_running_loop()
    for headers, seconds in (
        ({"headrace-timeout-ms": "5000", "x-stainless-read-timeout": "100"}, 5),
        ({"x-stainless-read-timeout": "100"}, 100),
        ({"x-stainless-read-timeout": "100.5"}, 100),
        ({"x-stainless-timeout": "200"}, 200),
        ({"x-stainless-read-timeout": "99999"}, 600),
        ({"x-stainless-read-timeout": "soon"}, 30),
        ({}, 30),
    ):
        assert (await http.post("/v1/embeddings", json=body("a"), headers=headers)).status_code == 200
        assert core.requests[-1].deadline_s - loop.time() == pytest.approx(seconds, abs=WITHIN_S / 5)


async def test_texts_that_were_cut_are_counted_in_a_header(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/embeddings", json=body(["a" * 101, "b"]))
    assert response.headers["headrace-truncated-inputs"] == "1"
    assert "headrace-truncated-inputs" not in (await http.post("/v1/embeddings", json=body("a"))).headers


async def test_a_version_can_be_named_in_a_header(http: httpx.AsyncClient) -> None:
    good = await http.post("/v1/embeddings", json=body("a"), headers={"headrace-model-version": "2"})
    assert good.status_code == 200
    bad = await http.post("/v1/embeddings", json=body("a"), headers={"headrace-model-version": "7"})
    assert error_of(bad, 404)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("model", "status", "param", "code"),
    [
        ("nope", 404, "model", "model_not_found"),
        ("classify", 400, "model", None),
        ("loading", 503, None, "model_not_ready"),
    ],
)
async def test_a_model_that_cannot_be_asked_says_why(
    http: httpx.AsyncClient, model: str, status: int, param: str | None, code: str | None
) -> None:
    error = error_of(await http.post("/v1/embeddings", json={"model": model, "input": "a"}), status)
    assert (error["param"], error["code"]) == (param, code)
    assert model in error["message"]


async def test_a_wrong_key_is_told_as_openai_tells_it_on_every_route(http: httpx.AsyncClient) -> None:
    headers = {"authorization": "Bearer wrong"}
    for response in (
        await http.get("/v1/models", headers=headers),
        await http.get("/v1/models/embed", headers=headers),
        await http.post("/v1/embeddings", json=body("a"), headers=headers),
        await http.post("/v1/rerank", json={}, headers=headers),
        await http.post("/v1/score", json={}, headers=headers),
    ):
        assert error_of(response, 401)["code"] == "invalid_api_key"


async def test_paths_and_methods_that_are_not_there_are_told_in_the_same_form(http: httpx.AsyncClient) -> None:
    assert "no path" in error_of(await http.get("/v1/nothing"), 404)["message"]
    wrong = await http.get("/v1/embeddings")
    error_of(wrong, 405)
    assert wrong.headers["allow"] == "POST, OPTIONS"
    assert set((await http.get("/v1/requests/abc")).json()) == {"error"}


async def test_a_body_over_the_limit_is_413(core: EmbedCore) -> None:
    door = await open_door(core, max_json_bytes=2000, max_request_bytes=4000)
    try:
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{door.port}") as client:
            assert "2000" in error_of(await client.post("/v1/embeddings", json=body("a" * 2000)), 413)["message"]
            assert "4000" in error_of(await client.post("/v1/embeddings", json=body("a" * 4000)), 413)["message"]
    finally:
        await door.close()


async def test_a_compressed_body_is_read(http: httpx.AsyncClient) -> None:
    import gzip

    packed = gzip.compress(json.dumps(body("abc")).encode())
    response = await http.post("/v1/embeddings", content=packed, headers={"content-encoding": "gzip"})
    assert response.json()["data"][0]["embedding"] == [3, 1]


async def test_only_models_that_are_ready_are_listed(http: httpx.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [item["id"] for item in listed["data"]] == ["classify", "embed"]
    assert (await http.get("/v1/models/embed")).json() == listed["data"][1]
    assert listed["data"][1]["object"] == "model"
    assert error_of(await http.get("/v1/models/nope"), 404)["code"] == "model_not_found"
    error_of(await http.get("/v1/models/loading"), 503)


async def test_answers_carry_the_requests_id_and_the_time_it_took(http: httpx.AsyncClient, core: EmbedCore) -> None:
    for headers in ({}, {"x-request-id": "mine"}):
        response = await http.post("/v1/embeddings", json=body("a"), headers=headers)
        assert response.headers["x-request-id"] == core.requests[-1].request_id
        assert int(response.headers["openai-processing-ms"]) >= 0
    core.failing = lambda _: ModelFailed("it raised")
    failed = await http.post("/v1/embeddings", json=body("a"))
    assert failed.headers["x-request-id"] == core.requests[-1].request_id


async def test_rerank_and_score_compare_by_cosine(http: httpx.AsyncClient) -> None:
    documents = ["aaaa", {"text": "a"}, "aa"]
    ranked = (await http.post("/v1/rerank", json={"model": "embed", "query": "aa", "documents": documents})).json()
    assert [result["index"] for result in ranked["results"]] == [2, 0, 1]
    assert ranked["results"][0]["relevance_score"] == pytest.approx(1)
    assert ranked["usage"]["total_tokens"] == 9
    scored = (await http.post("/v1/score", json={"model": "embed", "text_1": "aa", "text_2": ["aa", "a"]})).json()
    assert [item["score"] for item in scored["data"]] == [pytest.approx(1), pytest.approx(3 / 10**0.5)]
    pairs = {"model": "embed", "text_1": ["a", "aa"], "text_2": ["a", "aa"]}
    assert [item["score"] for item in (await http.post("/v1/score", json=pairs)).json()["data"]] == [
        pytest.approx(1),
        pytest.approx(1),
    ]


async def test_a_document_at_fault_is_named(http: httpx.AsyncClient, core: EmbedCore) -> None:
    core.failing = lambda opened: InvalidInput("bad row") if "bad" in opened.texts else None
    asked = {"model": "embed", "query": "q", "documents": ["a", "bad"]}
    error = error_of(await http.post("/v1/rerank", json=asked), 400)
    assert (error["message"], error["param"]) == ("documents[1]: bad row", "documents")
