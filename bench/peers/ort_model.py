"""The model code that every peer shares: the same ONNX file, the same session options, padding to the longest row."""

import os

import numpy as np
import onnxruntime as ort

MODELS = {
    "add_sub": (("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1"), np.float32),
    "minilm": (("input_ids", "attention_mask"), ("sentence_embedding",), np.int64),
}


class OrtModel:
    """One session of `name`; the environment variable MODEL_FILE names the ONNX file, ORT_INTRA its threads."""

    def __init__(self, name):
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("ORT_INTRA", "1"))
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = ort.InferenceSession(os.environ["MODEL_FILE"], options, providers=["CPUExecutionProvider"])
        self.inputs, self.outputs, self.dtype = MODELS[name]

    def run(self, rows):
        """`rows`: one dict of lists per row; gives one dict of lists per row."""
        longest = max(len(row[self.inputs[0]]) for row in rows)
        if any(len(row[self.inputs[0]]) != longest for row in rows):
            rows = [{k: v + [0] * (longest - len(v)) for k, v in row.items()} for row in rows]
        feeds = {name: np.asarray([row[name] for row in rows], self.dtype) for name in self.inputs}
        results = [array.tolist() for array in self.session.run(self.outputs, feeds)]
        return [dict(zip(self.outputs, row, strict=True)) for row in zip(*results, strict=True)]
