"""Writes the ONNX fixtures of this folder. Their files are committed; this says how they were made.

python tests/models/make_onnx.py
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

HERE = Path(__file__).parent


def save(name: str, graph: onnx.GraphProto) -> None:
    """Opset 17 and IR 8 run on every ONNX Runtime that is supported."""
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="headrace"
    )
    onnx.checker.check_model(model)
    path = HERE / name / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())


def add_sub() -> onnx.GraphProto:
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1."""
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 16])
        for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    }
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    return helper.make_graph(
        nodes, "add_sub", [values["INPUT0"], values["INPUT1"]], [values["OUTPUT0"], values["OUTPUT1"]]
    )


def mixed() -> onnx.GraphProto:
    """MEAN[row] = sum(VALUES[row] * MASK[row]) / sum(MASK[row]); rows of unlike length are padded to the longest."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", "length"]) for n in ("VALUES", "MASK")]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("Mul", ["VALUES", "MASK"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axes"], ["total"], keepdims=1),
        helper.make_node("ReduceSum", ["MASK", "axes"], ["count"], keepdims=1),
        helper.make_node("Div", ["total", "count"], ["MEAN"]),
    ]
    mean = helper.make_tensor_value_info("MEAN", TensorProto.FLOAT, ["batch", 1])
    return helper.make_graph(nodes, "mixed", values, [mean], initializer=[axes])


if __name__ == "__main__":
    save("add_sub", add_sub())
    save("mixed", mixed())
