"""A small pen to write an ONNX graph with: each call adds a node or a constant and returns the name of its value.

Knows nothing of any model, and chooses nothing: operator names and attributes are ONNX's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

IR_VERSION = 10


class GraphPen:
    """Nodes and constants of one graph, in the order they were written."""

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, value: Any, dtype: Any = None) -> str:
        """Add a constant; the same name twice is the same constant."""
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(np.asarray(value, dtype)), name)
        return name

    def node(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node with one output."""
        self._nodes.append(helper.make_node(operator, list(inputs), [output], name=output, **attributes))
        return output

    def model(
        self, name: str, inputs: Mapping[str, tuple[int, list[Any]]], outputs: Mapping[str, tuple[int, list[Any]]]
    ) -> onnx.ModelProto:
        """Close the graph and check it. Values are (element type, dims); a dim that is text may have any size."""
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info(key, *spec) for key, spec in inputs.items()],
            [helper.make_tensor_value_info(key, *spec) for key, spec in outputs.items()],
            list(self._constants.values()),
        )
        opset = [helper.make_opsetid("", self._opset)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="headrace")
        onnx.checker.check_model(model)
        return model
