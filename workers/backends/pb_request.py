"""`pb_utils` requests, responses, errors and logger, as a model.py sees them.

Written from the documented interface of Triton's python backend; no code of it is used. What is not served (calls of
other models, decoupled answers) raises TritonModelException that names it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from workers.backends.pb_tensor import Tensor, TritonModelException


class TritonError:
    """An error as a value: the answer of one request."""

    UNKNOWN: ClassVar[int] = 0
    INTERNAL: ClassVar[int] = 1
    NOT_FOUND: ClassVar[int] = 2
    INVALID_ARG: ClassVar[int] = 3
    UNAVAILABLE: ClassVar[int] = 4
    UNSUPPORTED: ClassVar[int] = 5
    ALREADY_EXISTS: ClassVar[int] = 6
    CANCELLED: ClassVar[int] = 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message = str(message)
        self._code = code

    def message(self) -> str:
        """What the caller reads."""
        return self._message

    def code(self) -> int:
        """One of the constants above."""
        return self._code


class InferenceResponse:
    """The answer to one request: tensors, or an error."""

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | str | None = None,
        parameters: Mapping[str, Any] | str | None = None,
    ) -> None:
        if parameters:
            raise TritonModelException("response parameters are not supported")
        for tensor in output_tensors or ():
            if not isinstance(tensor, Tensor):
                raise TritonModelException(f"output_tensors must be pb_utils.Tensor, not {type(tensor).__name__}")
        self._tensors = list(output_tensors or ())
        self._error = TritonError(error) if isinstance(error, str) else error

    def output_tensors(self) -> list[Tensor]:
        """The tensors."""
        return self._tensors

    def has_error(self) -> bool:
        """Whether this is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, or None."""
        return self._error

    def parameters(self) -> str:
        """JSON of the response's parameters: none are supported."""
        return "{}"


class PreferredMemory:
    """Where a model would like outputs; accepted, since all of them are in CPU memory."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceRequest:
    """One request of an execution. Also what a model would make to call another model, which is refused."""

    def __init__(
        self,
        *,
        model_name: str,
        requested_output_names: Sequence[str],
        inputs: Sequence[Tensor],
        request_id: str = "",
        correlation_id: int | str = 0,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: object = None,
        parameters: Mapping[str, Any] | str | None = None,
    ) -> None:
        self._model_name = model_name
        self._outputs = list(requested_output_names)
        self._inputs = list(inputs)
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._model_version = model_version
        self._flags = flags
        self._timeout_us = timeout
        self._preferred_memory = preferred_memory
        self._trace = trace
        self._parameters = parameters if isinstance(parameters, str) else json.dumps(dict(parameters or {}))

    def inputs(self) -> list[Tensor]:
        """The input tensors."""
        return self._inputs

    def request_id(self) -> str:
        """The caller's id, or an empty string."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """The sequence the request belongs to, 0 for none."""
        return self._correlation_id

    def requested_output_names(self) -> list[str]:
        """Names of the outputs that the caller wants."""
        return self._outputs

    def model_name(self) -> str:
        """The model's name."""
        return self._model_name

    def model_version(self) -> int:
        """The version that executes."""
        return self._model_version

    def flags(self) -> int:
        """Sequence flags."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set sequence flags."""
        self._flags = flags

    def timeout(self) -> int:
        """The request's queue time-out, microseconds; 0 for none."""
        return self._timeout_us

    def parameters(self) -> str:
        """JSON of the request's parameters."""
        return self._parameters

    def preferred_memory(self) -> PreferredMemory | None:
        """Where outputs would be liked."""
        return self._preferred_memory

    def trace(self) -> object:
        """The trace handle, if any."""
        return self._trace

    def is_cancelled(self) -> bool:
        """Whether the caller left: a request that runs is not told, so never."""
        return False

    def get_response_sender(self) -> Any:
        """Refused: answers come from execute."""
        raise TritonModelException("get_response_sender: decoupled models are not served; return from execute instead")

    def exec(self, decoupled: bool = False) -> InferenceResponse:  # noqa: ARG002 - the documented signature
        """Refused: a model can't call another."""
        raise TritonModelException(f"a model can't call another model ({self._model_name!r}) from model.py")

    async def async_exec(self, decoupled: bool = False) -> InferenceResponse:
        """Refused: a model can't call another."""
        return self.exec(decoupled)


class Logger:
    """Lines to the log of the model's process; class methods, as models use them."""

    VERBOSE: Final = "VERBOSE"
    INFO: Final = "INFO"
    WARNING: Final = "WARNING"
    ERROR: Final = "ERROR"

    @classmethod
    def log(cls, message: str, level: str = INFO) -> None:
        """One line; verbose ones are dropped."""
        if level != cls.VERBOSE:
            sys.stderr.write(f"{level}: {message}\n")

    @classmethod
    def log_info(cls, message: str) -> None:
        """One line at level INFO."""
        cls.log(message, cls.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        """One line at level WARNING."""
        cls.log(message, cls.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        """One line at level ERROR."""
        cls.log(message, cls.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        """Dropped."""
        cls.log(message, cls.VERBOSE)
