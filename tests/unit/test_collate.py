import numpy as np
import pytest

from contract.errors import InvalidInput, ModelFailed
from contract.model_config import TensorSpec
from contract.tensors import to_array
from tests.support.batcher_kit import make_config, make_item, make_ragged_config, make_text
from workers.collate import split, stack


def rows_of(results, output: int = 0) -> list:
    return [to_array(layout.tensors[output], data[output]).tolist() for layout, data in results]


class TestStack:
    def test_rows_are_joined_in_order_of_the_requests(self):
        items = [make_item(1, rows=2), make_item(2), make_item(3)]
        array = stack(items, make_config())["IN"]
        assert array.tolist() == [[1, 1], [1, 1], [2, 2], [3, 3]]
        assert array.flags.c_contiguous

    def test_one_request_is_not_copied_unless_it_lies_askew(self):
        item = make_item(7)
        assert np.shares_memory(stack([item], make_config())["IN"], np.frombuffer(item.data[0], np.float32))
        item.data = [memoryview(b"x" + bytes(item.data[0]))[1:]]
        array = stack([item], make_config())["IN"]
        assert array.flags.aligned
        assert array.tolist() == [[7, 7]]

    def test_a_model_without_a_batch_dimension_gets_the_shape_as_it_is(self):
        item = make_item(1, {"IN": np.zeros((4, 2), np.float32)})
        assert stack([item], make_config(0))["IN"].shape == (4, 2)

    def test_ragged_rows_are_padded_with_zeros_to_the_longest(self):
        array = stack([make_text(1, 2), make_text(2, 4)], make_ragged_config())["ids"]
        assert array.tolist() == [[1, 2, 0, 0], [1, 2, 3, 4]]

    def test_ragged_bytes_are_padded_with_empty_elements(self):
        config = make_config(inputs=(TensorSpec("T", "BYTES", (-1,), is_ragged=True),))
        short, long = np.array([[b"a"]], object), np.array([[b"b", b"c"]], object)
        array = stack([make_item(1, {"T": short}), make_item(2, {"T": long})], config)["T"]
        assert array.tolist() == [[b"a", b""], [b"b", b"c"]]

    def test_bytes_elements_keep_their_own_lengths(self):
        items = [make_item(n, {"T": np.array([[text]], object)}) for n, text in enumerate([b"", "naïve\0".encode()])]
        assert stack(items, make_config())["T"].tolist() == [[b""], ["naïve\0".encode()]]

    def test_optional_inputs_that_nobody_sent_are_left_out(self):
        config = make_config(
            inputs=(TensorSpec("IN", "FP32", (2,)), TensorSpec("MORE", "FP32", (2,), is_optional=True))
        )
        assert list(stack([make_item(1), make_item(2)], config)) == ["IN"]

    def test_wrong_sizes_that_cancel_out_are_still_found(self):
        items = [make_item(1), make_item(2)]
        items[0].data = [bytes(items[0].data[0]) + b"1234"]
        items[1].data = [bytes(items[1].data[0])[:4]]
        with pytest.raises(InvalidInput, match=r"12 bytes.* has 8"):
            stack(items, make_config())


class TestSplit:
    def test_each_request_gets_its_own_rows_as_views_of_one_buffer(self):
        items = [make_item(1, rows=2), make_item(2)]
        out = np.arange(6, dtype=np.float32).reshape(3, 2)
        results = split({"OUT": out}, items, make_config())
        assert rows_of(results) == [[[0, 1], [2, 3]], [[4, 5]]]
        assert all(isinstance(data[0], memoryview) and data[0].obj is results[0][1][0].obj for _, data in results)

    def test_results_that_look_alike_share_a_layout(self):
        results = split({"OUT": np.zeros((2, 2), np.float32)}, [make_item(1), make_item(2)], make_config())
        assert results[0][0] is results[1][0]

    def test_wanted_outputs_come_in_the_order_they_were_asked_for(self):
        config = make_config(outputs=(TensorSpec("A", "FP32", (1,)), TensorSpec("B", "FP32", (1,))))
        outputs = {name: np.zeros((1, 1), np.float32) for name in "AB"}
        for wanted, got in [(("B", "A"), ["B", "A"]), (("B",), ["B"]), ((), ["A", "B"])]:
            ((layout, _),) = split(outputs, [make_item(1, outputs=wanted)], config)
            assert [head.name for head in layout.tensors] == got

    def test_a_transposed_output_is_put_in_row_major_order(self):
        results = split({"OUT": np.array([[1, 3], [2, 4]], np.float32).T}, [make_item(1), make_item(2)], make_config())
        assert rows_of(results) == [[[1, 2]], [[3, 4]]]

    def test_an_empty_output_is_empty_for_everyone(self):
        config = make_config(outputs=(TensorSpec("OUT", "FP32", (-1,)),))
        results = split({"OUT": np.zeros((2, 0), np.float32)}, [make_item(1), make_item(2)], config)
        assert rows_of(results) == [[[]], [[]]]

    def test_text_outputs_become_bytes_elements(self):
        config = make_config(outputs=(TensorSpec("OUT", "BYTES", (1,)),))
        results = split({"OUT": np.array([["é"], ["b"]])}, [make_item(1), make_item(2)], config)
        assert rows_of(results) == [[["é".encode()]], [[b"b"]]]

    def test_bf16_is_told_by_the_config(self):
        config = make_config(outputs=(TensorSpec("OUT", "BF16", (1,)),))
        ((layout, _),) = split({"OUT": np.zeros((1, 1), np.uint16)}, [make_item(1)], config)
        assert layout.tensors[0].datatype == "BF16"

    @pytest.mark.parametrize(
        ("outputs", "named"),
        [
            ({"OUT": np.zeros((3, 2), np.float32)}, r"'OUT'.*\[3, 2\] for 2 rows"),
            ({"OUT": np.float32(1)}, r"'OUT'.*\[\] for 2 rows"),
            ({"OUT": np.zeros((2, 2))}, "'OUT'.*float64.*FP32"),
            ({"OUT": np.zeros((2, 3), np.float32)}, r"'OUT'.*\[3\].*\[2\]"),
            ({"OUT": np.zeros((2, 2, 1), np.float32)}, r"'OUT'.*\[2, 1\].*\[2\]"),
            ({"WRONG": np.zeros((2, 2), np.float32)}, "'WRONG'.*'OUT'"),
            ({}, "'OUT'"),
        ],
    )
    def test_an_output_that_does_not_fit_the_config_is_named_with_both_values(self, outputs, named):
        with pytest.raises(ModelFailed, match=named):
            split(outputs, [make_item(1), make_item(2)], make_config())

    def test_a_wanted_output_that_the_model_did_not_answer_is_named(self):
        items = [make_item(1, outputs=("OUT", "MORE"))]
        with pytest.raises(ModelFailed, match="'MORE'"):
            split({"OUT": np.zeros((1, 2), np.float32)}, items, make_config())


class TestPadding:
    def test_what_a_model_answers_for_padding_is_cut_off(self):
        items = [make_text(1, 2), make_text(2, 4)]
        config = make_ragged_config()
        assert rows_of(split(stack(items, config), items, config)) == [[[1, 2]], [[1, 2, 3, 4]]]

    def test_an_output_of_fixed_size_is_never_cut(self):
        config = make_config(
            inputs=(TensorSpec("ids", "INT64", (-1,), is_ragged=True),), outputs=(TensorSpec("OUT", "FP32", (4,)),)
        )
        items = [make_text(1, 2), make_text(2, 4)]
        assert rows_of(split({"OUT": np.ones((2, 4), np.float32)}, items, config)) == [[[1] * 4], [[1] * 4]]

    def test_an_open_output_of_a_model_without_ragged_inputs_is_never_cut(self):
        config = make_config(outputs=(TensorSpec("OUT", "FP32", (-1,)),))
        items = [make_item(1), make_item(2)]
        assert rows_of(split({"OUT": np.ones((2, 2), np.float32)}, items, config)) == [[[1, 1]], [[1, 1]]]

    def test_labels_per_token_are_cut_along_the_tokens_only(self):
        config = make_config(
            inputs=(TensorSpec("ids", "INT64", (-1,), is_ragged=True),), outputs=(TensorSpec("OUT", "FP32", (-1, 4)),)
        )
        items = [make_text(1, 2), make_text(2, 4)]
        results = split({"OUT": np.ones((2, 4, 4), np.float32)}, items, config)
        assert [layout.tensors[0].shape for layout, _ in results] == [(1, 2, 4), (1, 4, 4)]
