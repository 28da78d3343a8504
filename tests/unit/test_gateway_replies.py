"""Which bytes of a reply belong to which result."""

import pytest

from contract.envelope import BadEnvelope
from contract.errors import InternalError, ModelFailed
from contract.messages import Layout, ReplyMessage, ResultHead, TensorHead
from gateway.core import Answer
from gateway.replies import layout_sizes, make_outcome, result_sizes, slices

FIXED = Layout((TensorHead("a", "FP32", (2, 2)), TensorHead("b", "INT8", (3,))))
BYTES = Layout((TensorHead("a", "FP32", (2,)), TensorHead("t", "BYTES", (1,))))


def test_sizes_follow_from_shapes_and_only_bytes_need_their_own() -> None:
    assert layout_sizes(FIXED) == ((16, 3), 19)
    layouts = [layout_sizes(FIXED), layout_sizes(BYTES)]
    assert result_sizes(ResultHead(1, 0), layouts) == ((16, 3), 19)
    assert result_sizes(ResultHead(1, 1, (8, 9)), layouts) == ((8, 9), 17)
    assert result_sizes(ResultHead(1, code="model-failed"), layouts) == ((), 0)


@pytest.mark.parametrize("head", [ResultHead(1, 1), ResultHead(1, 2), ResultHead(1)])
def test_a_result_whose_bytes_cannot_be_told_is_refused(head: ResultHead) -> None:
    with pytest.raises(BadEnvelope):
        result_sizes(head, [layout_sizes(FIXED), layout_sizes(BYTES)])


def test_a_body_that_ends_early_is_refused() -> None:
    body = memoryview(b"0123456789")
    assert [bytes(part) for part in slices(body, 2, (3, 5))] == [b"234", b"56789"]
    with pytest.raises(BadEnvelope):
        slices(body, 3, (3, 5))


def test_an_outcome_is_an_answer_or_the_error_the_worker_named() -> None:
    message = ReplyMessage("w", "m", "3", [FIXED], [])
    data = slices(memoryview(bytes(19)), 0, (16, 3))
    answer = make_outcome(message, ResultHead(1, 0, parameters={"p": 1}, batch_rows=4), data)
    assert isinstance(answer, Answer)
    assert (answer.model, answer.version, answer.heads, answer.batch_rows) == ("m", "3", FIXED.tensors, 4)
    assert isinstance(make_outcome(message, ResultHead(1, code="model-failed", message="x"), []), ModelFailed)
    assert isinstance(make_outcome(message, ResultHead(1, code="from-the-future"), []), InternalError)
    with pytest.raises(BadEnvelope):
        make_outcome(message, ResultHead(1, 0), data[:1])
