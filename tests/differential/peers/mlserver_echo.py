"""A model for MLServer that reads its input as MLServer reads it and writes it back as OUT. Runs in its environment."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Echo(MLModel):
    """IN to OUT, decoded and encoded again."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Every input; an output may be asked for by name."""
        outputs = []
        for tensor in payload.inputs:
            codec = StringCodec if tensor.datatype == "BYTES" else NumpyCodec
            outputs.append(codec.encode_output("OUT", codec.decode_input(tensor)))
        return InferenceResponse(model_name=self.name, model_version=self.version, id=payload.id, outputs=outputs)
