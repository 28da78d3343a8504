"""One loaded model.py: imports it, gives it requests in its own words, and judges its answers. Knows no process.

Source: Triton python_backend README (TritonPythonModel, initialize's args, error handling).
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import json
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from contract.errors import Cancelled, HeadraceError, InvalidInput, ModelFailed, Unavailable
from contract.model_config import TensorSpec
from contract.tensors import NUMPY_TYPES, Array
from workers.backends import triton_python_backend_utils as pb_utils
from workers.backends.base import InstanceRequest, InstanceSource, LoadFailed, RequestResult
from workers.backends.reshape import to_caller, to_model

_MAX_ERROR_CHARS: Final = 400
_MAX_TRACEBACKS: Final = 50
"""Each place that raises is shown once: a thousand failed requests need no thousand tracebacks."""
_ERRORS: Final[dict[int, type[HeadraceError]]] = {
    pb_utils.TritonError.INVALID_ARG: InvalidInput,
    pb_utils.TritonError.UNAVAILABLE: Unavailable,
    pb_utils.TritonError.CANCELLED: Cancelled,
}
_numbers = itertools.count()


class LoadedModel:
    """A TritonPythonModel between `initialize` and `finalize`.

    Raises:
        LoadFailed: the file can't be imported, has no TritonPythonModel, or its `initialize` raised.
    """

    def __init__(self, source: InstanceSource) -> None:
        config = source.config
        self._name, self._version = config.name, source.version
        self._is_batched = config.max_batch_size > 0
        self._inputs = {spec.name: spec for spec in config.inputs}
        self._outputs = {spec.name: spec for spec in config.outputs}
        self._shown: set[tuple[str, int]] = set()
        path = source.version_dir / config.default_model_filename
        cls = model_class(path)
        try:
            self._model = cls()
            if hasattr(self._model, "initialize"):
                self._model.initialize(initialize_args(source))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a model may raise anything
            self._show(error)
            raise LoadFailed(f"{path.name}: initialize failed: {first_line(error)}") from None
        if not callable(getattr(self._model, "execute", None)):
            raise LoadFailed(f"{path.name}: TritonPythonModel has no execute")

    def run(self, requests: Sequence[InstanceRequest]) -> list[RequestResult]:
        """One `execute` over all requests, a result each.

        Raises:
            ModelFailed: execute raised, or did not return one response per request.
        """
        try:
            responses = self._model.execute([self._request(request) for request in requests])
            if inspect.iscoroutine(responses):
                import asyncio  # few models need it, and it is a fifth of the time that a process takes to start

                responses = asyncio.run(responses)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a model may raise anything
            self._show(error)
            raise ModelFailed(first_line(error)) from None
        if not isinstance(responses, Sequence):
            raise ModelFailed(
                f"execute returned {type(responses).__name__}, it must return a list of {len(requests)} responses"
            )
        if len(responses) != len(requests):
            raise ModelFailed(f"execute returned {len(responses)} responses for {len(requests)} requests")
        return [self._result(*pair) for pair in zip(requests, responses, strict=True)]

    def close(self) -> None:
        """Call `finalize`; what it raises is shown and goes no further."""
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a model may raise anything
            self._show(error)

    def _request(self, request: InstanceRequest) -> pb_utils.InferenceRequest:
        return pb_utils.InferenceRequest(
            model_name=self._name,
            model_version=int(self._version),
            requested_output_names=request.outputs or tuple(self._outputs),
            inputs=[self._tensor(self._inputs[name], array) for name, array in request.inputs.items()],
            request_id=request.request_id,
            correlation_id=request.correlation_id,
            timeout=request.timeout_us,
            parameters=request.parameters,
        )

    def _tensor(self, spec: TensorSpec, array: Array) -> pb_utils.Tensor:
        shaped = to_model(spec, array, is_batched=self._is_batched)
        return pb_utils.Tensor(spec.name, shaped, datatype=spec.datatype)

    def _result(self, request: InstanceRequest, response: object) -> RequestResult:
        if not isinstance(response, pb_utils.InferenceResponse):
            return ModelFailed(f"execute returned {type(response).__name__} where an InferenceResponse belongs")
        if (error := response.error()) is not None:
            return _ERRORS.get(error.code(), ModelFailed)(cut(error.message()))
        results: dict[str, Array] = {}
        try:
            for tensor in response.output_tensors():
                if not request.outputs or tensor.name() in request.outputs:
                    results[tensor.name()] = self._output(tensor)
        except ModelFailed as failed:
            return failed
        if missing := [name for name in request.outputs if name not in results]:
            given = ", ".join(tensor.name() for tensor in response.output_tensors())
            return ModelFailed(f"the response lacks output {missing[0]!r}, it has {given or 'none'}")
        return results

    def _output(self, tensor: pb_utils.Tensor) -> Array:
        spec = self._outputs.get(tensor.name())
        if spec is None:
            raise ModelFailed(f"the response has output {tensor.name()!r}, the config has {', '.join(self._outputs)}")
        datatype, array = tensor.to_wire()
        if datatype != spec.datatype:
            raise ModelFailed(f"output {spec.name!r} is {datatype} in the response, {spec.datatype} in the config")
        dims = spec.dims if spec.reshape is None else spec.reshape
        sizes = array.shape[1:] if self._is_batched else array.shape
        fits = len(sizes) == len(dims) and all(d in (-1, s) for s, d in zip(sizes, dims, strict=True))
        if not fits or (self._is_batched and not array.shape):
            per_row = " per row" if self._is_batched else ""
            raise ModelFailed(
                f"output {spec.name!r} is {list(array.shape)} in the response, {list(dims)}{per_row} in the config"
            )
        return to_caller(spec, as_plain(datatype, array), is_batched=self._is_batched)

    def _show(self, error: BaseException) -> None:
        """The traceback for who wrote the model; callers get one line."""
        frames = traceback.extract_tb(error.__traceback__)
        place = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
        if place not in self._shown and len(self._shown) < _MAX_TRACEBACKS:
            self._shown.add(place)
            own = error.__traceback__.tb_next if error.__traceback__ else None  # our own frame comes first
            traceback.print_exception(error.with_traceback(own))


def initialize_args(source: InstanceSource) -> dict[str, str]:
    """What `initialize` gets: strings only, as Triton documents them."""
    group_name = source.group.name or f"{source.config.name}_0"
    return {
        "model_config": json.dumps(source.triton_config, ensure_ascii=False),
        "model_instance_kind": source.group.kind.removeprefix("KIND_"),
        "model_instance_name": f"{group_name}_{source.index}",
        "model_instance_device_id": str(source.device_id or 0),
        "model_repository": str(source.model_dir),
        "model_version": source.version,
        "model_name": source.config.name,
    }


def model_class(path: Path) -> Any:
    """The TritonPythonModel of a file, imported as a module of a package of its own.

    Its folder may be imported from with `from .x import y` and, after everything else, with `import x`.

    Raises:
        LoadFailed: it can't be imported, or has no such class.
    """
    module = _import(path)
    cls = getattr(module, "TritonPythonModel", None)
    if cls is None:
        raise LoadFailed(f"{path.name} has no class TritonPythonModel")
    return cls


def auto_completed(path: Path, triton_json: str) -> Mapping[str, Any]:
    """The config after the model's `auto_complete_config`; unchanged where it has none.

    Raises:
        LoadFailed: it raised, or gave back no ModelConfig.
    """
    cls = model_class(path)
    config = pb_utils.ModelConfig(triton_json)
    if not hasattr(cls, "auto_complete_config"):
        return config.as_dict()
    try:
        completed = cls.auto_complete_config(config)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a model may raise anything
        raise LoadFailed(f"{path.name}: auto_complete_config failed: {first_line(error)}") from None
    if not isinstance(completed, pb_utils.ModelConfig):
        raise LoadFailed(f"{path.name}: auto_complete_config returned {type(completed).__name__}, not the ModelConfig")
    return completed.as_dict()


def as_plain(datatype: str, array: Array) -> Array:
    """The array in the form that every backend gives: native fixed-size types, or objects that are bytes."""
    if datatype != "BYTES":
        return array.astype(NUMPY_TYPES[datatype], copy=False)
    import numpy as np

    flat = array.reshape(-1)
    elements = np.empty(len(flat), object)
    elements[:] = [bytes(e) if isinstance(e, bytes | bytearray) else str(e).encode() for e in flat]
    return elements.reshape(array.shape)


def first_line(error: BaseException) -> str:
    """An exception as callers read it: its type where its text alone says nothing, one line, no traceback."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if not isinstance(error, pb_utils.TritonModelException):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return cut(text or type(error).__name__)


def cut(text: str) -> str:
    """`text`, when it is short enough for an error message, else its beginning."""
    return text if len(text) <= _MAX_ERROR_CHARS else text[: _MAX_ERROR_CHARS - 1] + "…"


def _import(path: Path) -> types.ModuleType:
    if not path.is_file():
        raise LoadFailed(f"{path.parent.name}/{path.name}: no such file")
    sys.modules["triton_python_backend_utils"] = pb_utils
    package = types.ModuleType(f"_headrace_model_{next(_numbers)}")
    package.__path__ = [str(path.parent)]
    sys.modules[package.__name__] = package
    for folder in (str(path.parent), str(path.parent.parent)):
        if folder not in sys.path:
            sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(f"{package.__name__}.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise LoadFailed(f"{path.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a model may raise anything
        traceback.print_exception(error)
        raise LoadFailed(f"{path.name} can't be imported: {first_line(error)}") from None
    return module
