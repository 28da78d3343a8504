"""What callers read of an ONNX Runtime failure: its reason and node, nothing of how it was built."""

from __future__ import annotations

import pytest

from workers.backends.ort_errors import first_line

RUNNING = "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running {} Status Message: "
CPU = "/onnxruntime_src/onnxruntime/core/providers/cpu/"


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (
            RUNNING.format("Add node. Name:'sum'") + CPU + "math/element_wise_ops.h:563 void onnxruntime::"
            "BroadcastIterator::Init(ptrdiff_t, ptrdiff_t) axis == 1 || axis == largest was false. "
            "Attempting to broadcast an axis by a dimension other than 1. 2 by 3\n",
            "Add node 'sum' failed: Attempting to broadcast an axis by a dimension other than 1. 2 by 3",
        ),
        (
            RUNNING.format("MatMul node. Name:''") + "matmul_helper.h:59 Compute MatMul dimension mismatch",
            "MatMul node '' failed: MatMul dimension mismatch",
        ),
        (
            RUNNING.format("Gather node. Name:'emb'") + "indices element out of data bounds, idx=9",
            "Gather node 'emb' failed: indices element out of data bounds, idx=9",
        ),
        (
            RUNNING.format("Conv node. Name:'c'") + "C:\\a\\ort\\conv.cc:12 onnxruntime::common::Status "
            "onnxruntime::Conv<T>::Compute(onnxruntime::OpKernelContext*) const [with T = float] no room left",
            "Conv node 'c' failed: no room left",
        ),
        (
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Unexpected input data type. Actual: (tensor(double))",
            "Unexpected input data type. Actual: (tensor(double))",
        ),
        ("", "Exception"),
    ],
)
def test_a_failure_is_its_reason_and_its_node(said: str, read: str) -> None:
    assert first_line(Exception(said)) == read


def test_a_long_reason_is_cut() -> None:
    assert len(first_line(Exception("x" * 5000))) == 400
