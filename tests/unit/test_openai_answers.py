"""Vectors and scores as OpenAI's and rerank clients read them, and errors in OpenAI's form."""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

import numpy as np
import pytest

from contract.errors import (
    DeadlineExceeded,
    Draining,
    Forbidden,
    HeadraceError,
    InternalError,
    InvalidInput,
    LimitReached,
    ModelFailed,
    NotFound,
    QueueFull,
    TextTooLong,
    TooLarge,
    Unauthenticated,
)
from gateway.openai.answers import cosines, cut_dimensions, embeddings_parts, rerank_answer, unit
from gateway.openai.asked import RerankAsked
from gateway.openai.errors import ApiRefused, ModelNotFound, at_input, is_openai_path, openai_error, openai_headers

VECTORS = np.array([[0.1, -0.2, 0.3], [3, 4, 0]], np.float32)


def body(encoding: Literal["float", "base64"]) -> Any:
    return json.loads(b"".join(embeddings_parts("m", VECTORS, encoding, 7)))


def test_floats_and_base64_are_the_same_numbers() -> None:
    floats, encoded = body("float"), body("base64")
    assert floats["object"] == "list"
    assert floats["model"] == "m"
    assert floats["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert [(item["object"], item["index"]) for item in floats["data"]] == [("embedding", 0), ("embedding", 1)]
    for row, own, other in zip(VECTORS, floats["data"], encoded["data"], strict=True):
        raw = base64.b64decode(other["embedding"], validate=True)
        assert len(raw) == 4 * 3
        assert np.array(own["embedding"], np.float32).tobytes() == raw == row.astype("<f4").tobytes()


def test_a_strided_vector_is_encoded_like_any_other() -> None:
    strided = np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2]
    found = json.loads(b"".join(embeddings_parts("m", strided, "float", 0)))
    assert [item["embedding"] for item in found["data"]] == strided.tolist()


def test_fewer_dimensions_are_the_first_ones_at_length_1() -> None:
    cut = cut_dimensions(VECTORS, 2)
    np.testing.assert_allclose(cut, [[1 / 5**0.5, -2 / 5**0.5], [0.6, 0.8]], rtol=1e-6)
    assert cut.dtype == np.float32
    assert cut_dimensions(VECTORS, 3) is VECTORS
    assert cut_dimensions(VECTORS, None) is VECTORS


def test_a_vector_that_is_cut_to_zeros_stays_zeros() -> None:
    assert cut_dimensions(np.array([[0, 0, 1]], np.float32), 2).tolist() == [[0, 0]]


def test_cosines_lie_between_minus_one_and_one() -> None:
    first = unit(np.array([[1, 1, 1]], np.float32))
    assert cosines(first, np.array([[2, 2, 2], [-1, -1, -1], [0, 0, 0], [1, -1, 0]], np.float32)) == [
        pytest.approx(1),
        pytest.approx(-1),
        0,
        pytest.approx(0, abs=1e-7),
    ]
    many = np.random.default_rng(3).normal(size=(200, 16)).astype(np.float32)
    assert all(-1 <= score <= 1 for score in cosines(many, many))


def test_the_best_documents_come_first_and_equal_ones_in_their_order() -> None:
    asked = RerankAsked("m", "q", ["a", "b", "c", "d"], 3, returns_documents=True)
    found = rerank_answer(asked, [0.1, 0.9, 0.5, 0.9], "id", 12)
    assert [(r["index"], r["relevance_score"], r["document"]["text"]) for r in found["results"]] == [
        (1, 0.9, "b"),
        (3, 0.9, "d"),
        (2, 0.5, "c"),
    ]
    assert found["usage"] == {"prompt_tokens": 12, "total_tokens": 12}
    without = rerank_answer(RerankAsked("m", "q", ["a"], 1, returns_documents=False), [0.1], "id", 1)
    assert without["results"] == [{"index": 0, "relevance_score": 0.1}]


# -------- errors
@pytest.mark.parametrize(
    ("error", "kind", "param", "code"),
    [
        (ApiRefused("x", "input"), "invalid_request_error", "input", None),
        (
            ApiRefused("x", "input", "context_length_exceeded"),
            "invalid_request_error",
            "input",
            "context_length_exceeded",
        ),
        (ModelNotFound("x"), "invalid_request_error", "model", "model_not_found"),
        (NotFound("x"), "invalid_request_error", None, None),
        (InvalidInput("x"), "invalid_request_error", None, None),
        (TooLarge("x"), "invalid_request_error", None, "too_large"),
        (Unauthenticated("x"), "invalid_request_error", None, "invalid_api_key"),
        (Forbidden("x"), "invalid_request_error", None, "insufficient_permissions"),
        (LimitReached("x"), "rate_limit_error", None, "rate_limit_exceeded"),
        (QueueFull("x"), "server_error", None, "queue_full"),
        (DeadlineExceeded("x"), "server_error", None, "deadline_exceeded"),
        (ModelFailed("x"), "server_error", None, "model_failed"),
    ],
)
def test_an_error_has_openais_form(error: HeadraceError, kind: str, param: str | None, code: str | None) -> None:
    found = json.loads(openai_error(error))
    assert found == {"error": {"message": "x", "type": kind, "param": param, "code": code}}


def test_clients_are_told_not_to_repeat_what_no_repetition_mends() -> None:
    for final in (ModelFailed("x"), DeadlineExceeded("x"), InternalError("x")):
        assert openai_headers(final) == {"x-should-retry": "false"}
    for other in (QueueFull("x"), Draining("x"), InvalidInput("x"), LimitReached("x")):
        assert openai_headers(other) == {}


def test_the_error_of_an_input_names_it() -> None:
    bad = at_input(InvalidInput("row 0 is bad"), "input[3]")
    assert isinstance(bad, ApiRefused)
    assert (bad.message, bad.param, bad.api_code) == ("input[3]: row 0 is bad", "input", None)
    long = at_input(TextTooLong("9 tokens"), "documents[2]")
    assert isinstance(long, ApiRefused)
    assert (long.param, long.api_code) == ("documents", "context_length_exceeded")
    failed = at_input(ModelFailed("raised"), "query")
    assert type(failed) is ModelFailed
    assert failed.message == "query: raised"


def test_text_that_no_utf8_can_carry_is_escaped() -> None:
    assert json.loads(openai_error(InvalidInput("a\ud800b")))["error"]["message"] == "a\\ud800b"


def test_our_own_routes_below_v1_keep_our_form() -> None:
    assert is_openai_path("/v1/embeddings")
    assert not is_openai_path("/v1/requests/abc")
    assert not is_openai_path("/v2/models/m")
