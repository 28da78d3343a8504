"""COUNT [1] to OUTPUT0 [COUNT]: 0, 1, 2, … as FP32."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """See above."""

    def execute(self, requests):
        responses = []
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            numbers = np.arange(count, dtype=np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", numbers)]))
        return responses
