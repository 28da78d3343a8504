"""Toxicity: alt-profanity-check's TF-IDF and calibrated linear SVM as one ONNX graph that takes the text itself.

Does not train or change anything: the graph answers what the scikit-learn pipeline answers.

    text BYTES [n, 1]  ->  label INT64 [n, 1] (1 is toxic), score FP32 [n, 1] (probability of label 1)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from original import toxicity_pipeline

OPSET = 17

# Python's `\w` is every letter and number of Unicode and the underscore; the converter's own expression is ASCII only
# and makes other tokens of one text in fifty.
WORD_EXPRESSION = r"[\pL\pN_][\pL\pN_]+"

# The converter asks for en_US.UTF-8, which a plain machine or container does not have: the session would not start.
LOCALE = "C.UTF-8"


def build(version_dir: Path) -> None:
    """Write `model.onnx` into `version_dir`."""
    model = _converted()
    _set_locale(model.graph)
    _set_outputs(model.graph)
    # The converter writes these in the order of a set; sorted, the file has the same bytes on every machine.
    domains = sorted((entry.domain, entry.version) for entry in model.opset_import)
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in domains)
    onnx.checker.check_model(model)
    onnx.save(model, version_dir / "model.onnx")


def _converted() -> onnx.ModelProto:
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import StringTensorType

    pipeline = toxicity_pipeline()
    options = {
        id(pipeline["vectorizer"]): {"tokenexp": WORD_EXPRESSION},
        id(pipeline["classifier"]): {"zipmap": False},
    }
    text = [("text", StringTensorType([None, 1]))]
    return convert_sklearn(pipeline, name="toxicity", initial_types=text, options=options, target_opset=OPSET)


def _set_locale(graph: onnx.GraphProto) -> None:
    (normalizer,) = [node for node in graph.node if node.op_type == "StringNormalizer"]
    kept = [attribute for attribute in normalizer.attribute if attribute.name != "locale"]
    del normalizer.attribute[:]
    normalizer.attribute.extend([*kept, helper.make_attribute("locale", LOCALE)])


def _set_outputs(graph: onnx.GraphProto) -> None:
    """Give both outputs a row per text: label [n] becomes [n, 1], probabilities [n, 2] become score [n, 1]."""
    for node in graph.node:
        node.output[:] = ["flat_label" if name == "label" else name for name in node.output]
    constants = {"column": [-1, 1], "score_start": [1], "score_end": [2], "score_axis": [1]}
    graph.initializer.extend(numpy_helper.from_array(np.array(v, np.int64), name) for name, v in constants.items())
    graph.node.append(helper.make_node("Reshape", ["flat_label", "column"], ["label"]))
    slice_of = ["probabilities", "score_start", "score_end", "score_axis"]
    graph.node.append(helper.make_node("Slice", slice_of, ["score"]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["batch", 1]))
    graph.output.append(helper.make_tensor_value_info("score", onnx.TensorProto.FLOAT, ["batch", 1]))
    for dims in (value.type.tensor_type.shape.dim for value in graph.input):
        dims[0].dim_param = "batch"
