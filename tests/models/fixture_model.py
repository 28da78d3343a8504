"""The python model behind most fixtures of this folder: an identity that misbehaves as its config's parameters say.

INPUT<x> comes back as OUTPUT<x>. Each `<fixture>/1/model.py` is a link to this file.

Parameters (all optional):
    sleep_ms            every execution sleeps this long
    load_s              initialize sleeps this long
    raise_when_first    an execution raises when a row begins with this number
    error_when_first    only the request with such a row gets an error
    kill_when_first     the process kills itself with SIGKILL
    hang_when_first     execute never returns
    counters            adds EXECUTIONS (how many this instance has made) and ROWS (rows of this one) to each row

Where HEADRACE_COUNTER_DIR is set, each execution appends one JSON line to `<model>.jsonl` there before it does
anything else: {"rows": [rows of each request], "ids": [their ids], "instance", "pid", "unix_s"}.
"""

import json
import os
import signal
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """See above."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self._parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self._is_batched = config["max_batch_size"] > 0
        self._name, self._instance = args["model_name"], args["model_instance_name"]
        self._num_executions = 0
        self._sleep_s = float(self._parameters.get("sleep_ms", 0)) / 1000
        time.sleep(float(self._parameters.get("load_s", 0)))

    def execute(self, requests):
        self._num_executions += 1
        rows = [self._num_rows(request) for request in requests]
        self._count(requests, rows)
        if self._is_asked_to("kill_when_first", requests):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is_asked_to("hang_when_first", requests):
            threading.Event().wait()
        if self._sleep_s:
            time.sleep(self._sleep_s)
        if self._is_asked_to("raise_when_first", requests):
            raise ValueError(f"a row begins with {self._parameters['raise_when_first']}")
        return [self._response(request, num, sum(rows)) for request, num in zip(requests, rows, strict=True)]

    def _response(self, request, num_rows, num_all_rows):
        if self._is_asked_to("error_when_first", [request]):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("this request is refused"))
        outputs = [
            pb_utils.Tensor(tensor.name().replace("INPUT", "OUTPUT"), tensor.as_numpy()) for tensor in request.inputs()
        ]
        if "counters" in self._parameters:
            for name, value in (("EXECUTIONS", self._num_executions), ("ROWS", num_all_rows)):
                outputs.append(pb_utils.Tensor(name, np.full((num_rows, 1), value, np.int64)))
        return pb_utils.InferenceResponse(output_tensors=outputs)

    def _num_rows(self, request):
        return request.inputs()[0].as_numpy().shape[0] if self._is_batched else 1

    def _is_asked_to(self, parameter, requests):
        if parameter not in self._parameters:
            return False
        number = float(self._parameters[parameter])
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        return any(array.size and (array.reshape(array.shape[0], -1)[:, 0] == number).any() for array in arrays)

    def _count(self, requests, rows):
        folder = os.environ.get("HEADRACE_COUNTER_DIR")
        if not folder:
            return
        line = {
            "rows": rows,
            "ids": [request.request_id() for request in requests],
            "instance": self._instance,
            "pid": os.getpid(),
            "unix_s": time.time(),
        }
        # One write on a descriptor in append mode: lines of several processes don't mix.
        fd = os.open(f"{folder}/{self._name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(fd, (json.dumps(line) + "\n").encode())
        finally:
            os.close(fd)
