import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from contract.errors import InvalidInput
from contract.tensors import NUMPY_TYPES
from headrace.ask import lines_of, parse_inputs
from headrace.oip import InputSpec, Result, as_tensor, decode_answer, encode_json, encode_request, input_specs

TEXT = InputSpec("text", "BYTES", (-1, 1))
IDS = InputSpec("ids", "INT64", (-1, -1))


@pytest.mark.parametrize(
    ("value", "spec", "shape"),
    [
        ("a", TEXT, (1, 1)),
        (["a", "b"], TEXT, (2, 1)),
        ([["a"], ["b"]], TEXT, (2, 1)),
        ([1, 2, 3], IDS, (1, 3)),
        ([[1, 2], [3, 4]], IDS, (2, 2)),
        (7, InputSpec("n", "INT32", (1,)), (1,)),
        (1.5, InputSpec("x", "FP32", (-1, 1)), (1, 1)),
    ],
)
def test_lists_and_single_values_are_fitted_to_the_input(value, spec, shape) -> None:
    assert as_tensor(value, spec).shape == shape


def test_an_array_keeps_its_shape_and_gets_the_inputs_datatype() -> None:
    array = as_tensor(np.zeros((2, 3, 4), np.int32), IDS)
    assert array.shape == (2, 3, 4)
    assert array.dtype == np.int64


def test_a_value_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"input 'ids': \['x'\] is not INT64"):
        as_tensor(["x"], IDS)


def test_the_binary_form_has_the_json_first_and_the_raw_tensors_behind() -> None:
    body, length = encode_request({"ids": ("INT64", np.array([[1, 2]]))}, outputs=["o"], request_id="r")
    head = json.loads(body[:length])
    assert head["inputs"] == [
        {"name": "ids", "datatype": "INT64", "shape": [1, 2], "parameters": {"binary_data_size": 16}}
    ]
    assert head["outputs"] == [{"name": "o", "parameters": {"binary_data": True}}]
    assert head["id"] == "r"
    assert body[length:] == np.array([[1, 2]]).tobytes()


@given(st.sampled_from([d for d in NUMPY_TYPES if d != "BF16"]), st.data())
def test_a_tensor_of_any_datatype_comes_back_as_it_went(datatype: str, data) -> None:
    array = data.draw(hnp.arrays(NUMPY_TYPES[datatype], hnp.array_shapes(max_dims=3, max_side=4)))
    body, length = encode_request({"x": (datatype, array)})
    answer = {"model_name": "m", "model_version": "3", "outputs": json.loads(body[:length])["inputs"]}
    head = json.dumps(answer).encode()
    result = decode_answer(head + body[length:], len(head))
    assert result.version == "3"
    assert result.outputs["x"].tobytes() == array.tobytes()
    assert result.outputs["x"].shape == array.shape


def test_the_json_form_is_read_as_well() -> None:
    answer = {"outputs": [{"name": "o", "datatype": "BYTES", "shape": [2, 1], "data": ["ä", "b"]}]}
    assert decode_answer(json.dumps(answer).encode(), None).outputs["o"].tolist() == [["ä".encode()], [b"b"]]


def test_the_json_request_holds_text_and_numbers_flat() -> None:
    request = encode_json({"text": ("BYTES", as_tensor(["a", "b"], TEXT)), "ids": ("INT64", np.array([[1, 2]]))})
    assert request["inputs"][0] == {"name": "text", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "b"]}
    assert request["inputs"][1]["data"] == [1, 2]


def test_metadata_gives_the_inputs() -> None:
    found = input_specs({"inputs": [{"name": "text", "datatype": "BYTES", "shape": ["-1", "1"]}]})
    assert found == {"text": TEXT}


def test_a_model_with_a_tokenizer_takes_text_too() -> None:
    ids = {"name": "ids", "datatype": "INT64", "shape": [-1, -1]}
    assert input_specs({"inputs": [ids], "parameters": {"text_input": "text"}}) == {"ids": IDS, "text": TEXT}


def test_values_are_json_where_the_input_is_no_text() -> None:
    specs = {"text": TEXT, "ids": IDS}
    assert parse_inputs("m", ["ids=[1,2]", "text=12"], [], specs) == {"ids": [1, 2], "text": "12"}


def test_text_goes_to_the_only_text_input() -> None:
    assert parse_inputs("m", [], ["a", "b"], {"text": TEXT, "ids": IDS}) == {"text": ["a", "b"]}
    with pytest.raises(InvalidInput, match="one BYTES input, this one has 0"):
        parse_inputs("m", [], ["a"], {"ids": IDS})


@pytest.mark.parametrize(("pair", "told"), [("ids", "NAME=VALUE"), ("idz=1", "it has ids")])
def test_a_wrong_pair_is_told_what_is_right(pair: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        parse_inputs("m", [pair], [], {"ids": IDS})


@pytest.mark.parametrize(
    ("specs", "told"),
    [
        ({"text": TEXT}, r"nothing to ask: model m takes text \(BYTES \[1\]\); give --text TEXT or --input NAME=VALUE"),
        ({"ids": IDS}, r"nothing to ask: model m takes ids \(INT64 \[-1\]\); give --input NAME=VALUE"),
    ],
)
def test_nothing_given_is_told_what_the_model_takes(specs: dict[str, InputSpec], told: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{told}$"):
        parse_inputs("m", [], [], specs)


def test_of_a_long_output_people_see_the_first_numbers_and_json_all() -> None:
    result = Result("m", "1", "", {"e": np.full((1, 384), 0.1, np.float32)}, {})
    assert list(lines_of(result, as_json=False)) == [f"e  [{', '.join(['0.1'] * 8)}, … (384 values)]"]
    (line,) = lines_of(result, as_json=True)
    assert json.loads(line)["outputs"] == {"e": [[0.1] * 384]}


def test_an_answer_is_printed_a_line_per_output() -> None:
    outputs = {"label": np.array([[1]]), "names": np.array([[b"x"]], object)}
    result = Result("m", "1", "", outputs, {})
    assert list(lines_of(result, as_json=False)) == ["label  [[1]]", 'names  [["x"]]']
    (line,) = lines_of(result, as_json=True)
    assert json.loads(line)["outputs"] == {"label": [[1]], "names": [["x"]]}
