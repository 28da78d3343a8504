"""Identity that sleeps 5 or 50 ms per execution: whoever takes the turn file first is the fast one."""

import os
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, _args):
        turn = Path(os.environ["BENCH_TURN_FILE"])
        try:
            turn.touch(exist_ok=False)
            self.seconds = 0.005
        except FileExistsError:
            self.seconds = 0.05

    def execute(self, requests):
        time.sleep(self.seconds)
        inputs = [pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", x)]) for x in inputs]
