"""Bodies of the OpenAI routes: what is taken, and that every refusal names the parameter and the item."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.openai.asked import MAX_INPUTS, MAX_TOKENS, embeddings_asked, rerank_asked, score_asked
from gateway.openai.errors import ApiRefused


def embeddings(value: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": value, **fields}).encode()


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 0], [[1, 2, 0]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["naïve 日本語 🙂"], ["naïve 日本語 🙂"]),
    ],
)
def test_the_four_forms_of_input_are_taken(value: Any, inputs: Any) -> None:
    found = embeddings_asked(embeddings(value))
    assert found.inputs == inputs
    assert (found.model, found.encoding, found.dimensions) == ("m", "float", None)


def test_an_input_is_called_by_its_index_only_where_it_has_one() -> None:
    assert embeddings_asked(embeddings("one")).name(0) == "input"
    assert embeddings_asked(embeddings([1, 2])).name(0) == "input"
    assert embeddings_asked(embeddings(["one", "two"])).name(1) == "input[1]"


def test_null_stands_for_absent_and_other_fields_are_ignored() -> None:
    body = embeddings("a", encoding_format=None, dimensions=None, user="me", priority=3)
    assert embeddings_asked(body) == embeddings_asked(embeddings("a"))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([], "input is an empty list"),
        ("", "input is an empty string"),
        (["a", ""], r"input\[1\] is an empty string"),
        (["a", None], r"input\[1\] is null"),
        (["a", 1], r"input\[1\] is a number"),
        ([1, "a"], "input holds a string, which is no token"),
        ([1] * (MAX_TOKENS + 1), "input has 131073 tokens, at most 131072"),
        ([[1], [1] * (MAX_TOKENS + 1)], r"input\[1\] has 131073 tokens"),
        ([True], r"input\[0\] is a boolean"),
        ([[1], []], r"input\[1\] is an empty list"),
        ([[1], "a"], r"input\[1\] is a string"),
        ([[1], [1.5]], r"input\[1\] holds a number, which is no token"),
        ([[1, -1]], r"input\[0\] holds -1"),
        ([2**31], "input holds 2147483648"),
        (None, "input is null"),
        ({"text": "a"}, "input is an object"),
        (5, "input is a number"),
        (["a"] * (MAX_INPUTS + 1), "input has 2049 items, at most 2048"),
        ([[1]] * (MAX_INPUTS + 1), "input has 2049 items, at most 2048"),
    ],
)
def test_an_input_that_cannot_be_is_refused_by_its_place(value: Any, named: str) -> None:
    with pytest.raises(ApiRefused, match=named) as refused:
        embeddings_asked(embeddings(value))
    assert refused.value.param == "input"


def test_as_many_inputs_as_there_may_be_are_taken() -> None:
    assert len(embeddings_asked(embeddings(["a"] * MAX_INPUTS)).inputs) == MAX_INPUTS
    assert len(embeddings_asked(embeddings(list(range(5_000)))).inputs) == 1


@pytest.mark.parametrize(
    ("body", "param", "named"),
    [
        (embeddings("a", encoding_format="bogus"), "encoding_format", "'bogus'"),
        (embeddings("a", encoding_format=5), "encoding_format", "encoding_format"),
        (embeddings("a", dimensions=0), "dimensions", "dimensions is 0"),
        (embeddings("a", dimensions=-3), "dimensions", "dimensions is -3"),
        (embeddings("a", dimensions=1.5), "dimensions", "dimensions"),
        (embeddings("a", dimensions="8"), "dimensions", "dimensions"),
        (embeddings("a", model=""), "model", "model is an empty string"),
        (embeddings("a", model=7), "model", "model"),
        (b'{"input": "a"}', "model", "model"),
        (b'{"model": "m"}', "input", "input"),
        (b"[]", None, "object"),
        (b"", None, "not JSON"),
        (b"{", None, "not JSON"),
        (b'{"model": "m", "input": "\\ud800"}', None, "not JSON"),
        (b'{"model": "m", "input": "\xff"}', None, "not JSON"),
        (b'{"model": "m", "input": ' + b"[" * 100_000, None, "not JSON"),
    ],
)
def test_a_body_that_cannot_be_is_refused_by_its_parameter(body: bytes, param: str | None, named: str) -> None:
    with pytest.raises(ApiRefused, match=named) as refused:
        embeddings_asked(body)
    assert refused.value.param == param


ANYTHING = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists)
FIELDS = {
    embeddings_asked: {"model": "m", "input": "a", "encoding_format": "float", "dimensions": 5},
    rerank_asked: {"model": "m", "query": "q", "documents": ["a"], "top_n": 1, "return_documents": True},
    score_asked: {"model": "m", "text_1": "a", "text_2": ["b"]},
}


@pytest.mark.parametrize("parse", FIELDS)
@given(value=ANYTHING, data=st.data())
def test_whatever_a_field_is_it_is_taken_or_refused(
    parse: Callable[[bytes], object], value: Any, data: st.DataObject
) -> None:
    fields = FIELDS[parse]
    body = {**fields, data.draw(st.sampled_from(sorted(fields))): value}
    with contextlib.suppress(ApiRefused):
        parse(json.dumps(body).encode("utf-8", "surrogatepass"))


# -------- rerank and score
def rerank(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "query": "q", "documents": ["a", {"text": "b"}], **fields}).encode()


def test_documents_are_strings_or_objects_with_a_text() -> None:
    found = rerank_asked(rerank())
    assert found.texts == ["q", "a", "b"]
    assert (found.top_n, found.returns_documents) == (2, False)
    assert [found.name(index) for index in range(3)] == ["query", "documents[0]", "documents[1]"]


def test_top_n_is_never_more_than_there_are() -> None:
    assert rerank_asked(rerank(top_n=1)).top_n == 1
    assert rerank_asked(rerank(top_n=50)).top_n == 2


@pytest.mark.parametrize(
    ("fields", "param", "named"),
    [
        ({"query": ""}, "query", "empty"),
        ({"query": ["q"]}, "query", "query"),
        ({"documents": []}, "documents", "empty list"),
        ({"documents": "a"}, "documents", "documents"),
        ({"documents": ["a", {"txt": "b"}]}, "documents", r"documents\[1\] is null"),
        ({"documents": ["a", {"text": 5}]}, "documents", r"documents\[1\] is a number"),
        ({"documents": ["a"] * (MAX_INPUTS + 1)}, "documents", "2049"),
        ({"top_n": 0}, "top_n", "top_n is 0"),
        ({"return_documents": "yes"}, "return_documents", "return_documents"),
    ],
)
def test_a_rerank_that_cannot_be_is_refused_by_its_parameter(fields: Any, param: str, named: str) -> None:
    with pytest.raises(ApiRefused, match=named) as refused:
        rerank_asked(rerank(**fields))
    assert refused.value.param == param


def score(first: Any, second: Any) -> bytes:
    return json.dumps({"model": "m", "text_1": first, "text_2": second}).encode()


def test_one_text_is_scored_with_many_or_each_with_its_own() -> None:
    found = score_asked(score("a", ["b", "c"]))
    assert (found.first, found.second) == (["a"], ["b", "c"])
    assert [found.name(index) for index in range(3)] == ["text_1[0]", "text_2[0]", "text_2[1]"]
    assert score_asked(score(["a", "b"], ["c", "d"])).texts == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("first", "second", "param", "named"),
    [
        (["a", "b"], ["c", "d", "e"], "text_1", "has 2 texts and text_2 3"),
        (["a", "b"], "c", "text_1", "has 2 texts and text_2 1"),
        ("a", [], "text_2", "empty list"),
        (5, "a", "text_1", "a number"),
        ("a", ["b", None], "text_2", r"text_2\[1\] is null"),
    ],
)
def test_a_score_that_cannot_be_is_refused_by_its_parameter(first: Any, second: Any, param: str, named: str) -> None:
    with pytest.raises(ApiRefused, match=named) as refused:
        score_asked(score(first, second))
    assert refused.value.param == param
