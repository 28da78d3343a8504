"""The onnxruntime backend: one execution on arrays joined along the batch dimension. Batches and pads nothing.

Instances on the CPU with one intra-op thread share a session, which ONNX Runtime allows to run from several threads;
instances with more threads, and those on a GPU, get a session each, so that none waits for another's thread pool.

Source: ONNX Runtime Python API; Triton onnxruntime_backend README.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from contract.errors import InvalidInput, ModelFailed
from contract.model_config import TensorSpec
from contract.tensors import Array
from workers.backends import ort_graph
from workers.backends.base import InstanceRequest, InstanceSource, LoadFailed, ModelInstance, RequestResult
from workers.backends.gpus import visible_gpus
from workers.backends.ort_errors import first_line
from workers.backends.ort_options import CPU, CUDA, OrtOptions, ort_options
from workers.backends.reshape import to_caller, to_model
from workers.repository.convert import model_filename
from workers.repository.pbtxt import TritonConfig

_BFLOAT16: Final = 16
"""TensorProto.BFLOAT16; numpy has no such type, so its arrays travel as uint16."""

_sessions: weakref.WeakValueDictionary[tuple[object, ...], Any] = weakref.WeakValueDictionary()
_loading: weakref.WeakValueDictionary[tuple[object, ...], threading.Lock] = weakref.WeakValueDictionary()
_loading_lock = threading.Lock()


def load(source: InstanceSource) -> ModelInstance:
    """One instance.

    Raises:
        LoadFailed: no model file, a provider that isn't there, or a graph that the config doesn't fit.
    """
    path = source.version_dir / source.config.default_model_filename
    options = ort_options(source)
    if source.group.kind == "KIND_CPU" and options.intra_op_threads == 1 and not options.is_parallel:
        session = _shared_session(path, options)
    else:
        session = _new_session(path, options)
    inputs = ort_graph.graph_tensors(session.get_inputs())
    outputs = ort_graph.graph_tensors(session.get_outputs())
    ort_graph.check_graph(source.config, inputs, outputs)
    return OnnxInstance(source, session, options)


def is_complete(triton: TritonConfig, version_dir: Path) -> bool:  # noqa: ARG001 - the Protocol's
    """Whether the config needs nothing from the graph."""
    return bool(triton.get("input")) and bool(triton.get("output"))


def complete(triton: TritonConfig, model_dir: Path, version: str) -> TritonConfig:
    """The config with the graph's inputs and outputs where it leaves them out."""
    import onnxruntime

    path = model_dir / version / model_filename(triton, "onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = _open(path, options, [CPU])
    inputs = ort_graph.graph_tensors(session.get_inputs())
    return ort_graph.complete(triton, inputs, ort_graph.graph_tensors(session.get_outputs()))


def offered_gpus() -> tuple[int, ...]:
    """GPUs that an unasked (KIND_AUTO) model is put on: none without the CUDA provider."""
    gpus = visible_gpus()
    if not gpus:
        return ()
    import onnxruntime

    return gpus if CUDA in onnxruntime.get_available_providers() else ()


class OnnxInstance:
    """A session, and what has to be done to arrays on their way in and out."""

    is_request_wise = False
    holds_process = False

    def __init__(self, source: InstanceSource, session: Any, options: OrtOptions) -> None:
        config = source.config
        self._session: Any = session
        # The Python wrapper's checks cost as much as a tiny model and find nothing that the engine does not find.
        self._run: Any = getattr(session, "_sess", session).run
        self._is_batched = config.max_batch_size > 0
        self._inputs = _changed(config.inputs)
        self._outputs = _changed(config.outputs)
        datatypes = {spec.name: spec.datatype for spec in (*config.inputs, *config.outputs)}
        self._bfloat16 = frozenset(name for name, datatype in datatypes.items() if datatype == "BF16")
        self._run_options = _run_options(options)
        is_bound = source.group.kind == "KIND_GPU" and "BYTES" not in datatypes.values()
        self._binding: Any = session.io_binding() if is_bound else None

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """One execution; see ModelInstance."""
        if self._session is None:
            raise ModelFailed("the instance is closed")
        feed = inputs if not self._inputs else {name: self._to_session(name, array) for name, array in inputs.items()}
        try:
            found = self._execute(feed, outputs)
        except Exception as error:  # noqa: BLE001 - the engine's errors share no base class of their own
            raise ModelFailed(first_line(error)) from None
        if not self._outputs:
            return found
        return {name: self._to_result(name, array) for name, array in found.items()}

    def run_requests(self, requests: Sequence[InstanceRequest]) -> Sequence[RequestResult]:  # noqa: ARG002 - the Protocol's
        """Not this backend's way: it runs joined arrays."""
        raise ModelFailed("backend 'onnxruntime' runs joined arrays, not single requests")

    def close(self) -> None:
        """Free the session; it ends when no other instance shares it."""
        self._session = self._run = self._binding = None

    def _execute(self, feed: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        if self._binding is not None:
            return self._run_bound(feed, outputs)
        if self._bfloat16:
            return self._run_values(feed, outputs)
        return dict(zip(outputs, self._run(outputs, feed, self._run_options), strict=True))

    def _run_bound(self, feed: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """On a GPU: inputs are copied once, straight to the device; outputs come back in one step after the run."""
        binding = self._binding
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, self._to_value(name, array))
        for name in outputs:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding, self._run_options)
        return {name: _to_numpy(v) for name, v in zip(outputs, binding.get_outputs(), strict=True)}

    def _run_values(self, feed: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        values = {name: self._to_value(name, array) for name, array in feed.items()}
        found = self._session.run_with_ort_values(outputs, values, self._run_options)
        return {name: _to_numpy(value) for name, value in zip(outputs, found, strict=True)}

    def _to_value(self, name: str, array: Array) -> Any:
        from onnxruntime import OrtValue

        if name in self._bfloat16:
            return OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array), _BFLOAT16)
        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))

    def _to_session(self, name: str, array: Array) -> Array:
        spec = self._inputs.get(name)
        if spec is None:
            return array
        if spec.datatype == "BYTES":
            array = _to_strings(name, array)
        return to_model(spec, array, is_batched=self._is_batched)

    def _to_result(self, name: str, array: Array) -> Array:
        spec = self._outputs.get(name)
        if spec is None:
            return array
        if spec.datatype == "BYTES":
            array = _to_bytes(array)
        return to_caller(spec, array, is_batched=self._is_batched)


def _changed(specs: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
    """The tensors that the session wants or gives in another form than callers have them."""
    return {spec.name: spec for spec in specs if spec.datatype == "BYTES" or spec.reshape is not None}


def _shared_session(path: Path, options: OrtOptions) -> Any:
    """The session of this very file and options, loaded once however many instances ask at a time."""
    try:
        state = path.stat()
    except OSError as error:
        raise LoadFailed(f"{path.parent.name}/{path.name}: {error.strerror}") from None
    key = (str(path), state.st_ino, state.st_mtime_ns, state.st_size, options)
    with _loading_lock:
        # One lock per session: models that have nothing in common load side by side.
        lock = _loading.setdefault(key, threading.Lock())
    with lock:
        session = _sessions.get(key)
        if session is None:
            session = _sessions[key] = _new_session(path, options)
        return session


def _new_session(path: Path, options: OrtOptions) -> Any:
    import onnxruntime

    there = onnxruntime.get_available_providers()
    for name, _ in options.providers:
        if name not in there:
            extra = "headrace[worker-gpu]" if name in (CUDA, "TensorrtExecutionProvider") else "onnxruntime-openvino"
            raise LoadFailed(
                f"the config asks for {name}, this onnxruntime has {', '.join(there)}: pip install '{extra}'"
                f" in an environment without the CPU-only onnxruntime"
            )
    session = _open(path, _session_options(options), [(name, dict(given)) for name, given in options.providers])
    used = session.get_providers()
    if missing := [name for name, _ in options.providers if name not in used]:
        raise LoadFailed(
            f"{missing[0]} could not start (it left {', '.join(used)}); check that driver and CUDA libraries match"
        )
    return session


def _open(path: Path, options: Any, providers: Sequence[Any]) -> Any:
    import onnxruntime

    if not path.is_file():
        raise LoadFailed(f"{path.parent.name}/{path.name}: no such file")
    try:
        # Without the fallback a provider that fails is an error here, not a slow model in production.
        session = onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    except Exception as error:  # noqa: BLE001 - the engine's errors share no base class of their own
        raise LoadFailed(f"{path.parent.name}/{path.name}: {first_line(error)}") from None
    return session


def _session_options(options: OrtOptions) -> Any:
    import onnxruntime

    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = options.intra_op_threads
    made.inter_op_num_threads = options.inter_op_threads
    mode = onnxruntime.ExecutionMode
    made.execution_mode = mode.ORT_PARALLEL if options.is_parallel else mode.ORT_SEQUENTIAL
    made.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, options.graph_level)
    made.enable_cpu_mem_arena = options.has_mem_arena
    made.enable_mem_pattern = options.has_mem_pattern
    made.log_severity_level = 3  # errors; warnings of the optimizer are no use to who runs a service
    for name, value in options.entries:
        made.add_session_config_entry(name, value)
    return made


def _run_options(options: OrtOptions) -> Any:
    if not options.arena_shrinkage:
        return None
    import onnxruntime

    made = onnxruntime.RunOptions()
    made.add_run_config_entry("memory.enable_memory_arena_shrinkage", options.arena_shrinkage)
    return made


def _to_strings(name: str, array: Array) -> Array:
    """An ONNX string is text: elements become `str`.

    Raises:
        InvalidInput: an element is not UTF-8; names the input and the element.
    """
    flat = array.reshape(-1)
    texts = np.empty(len(flat), object)
    for at, element in enumerate(flat):
        try:
            texts[at] = element.decode() if isinstance(element, bytes) else str(element)
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"input {name!r}: element {at} is not UTF-8 text (byte {error.start}), the model takes only text"
            ) from None
    return texts.reshape(array.shape)


def _to_bytes(array: Array) -> Array:
    flat = array.reshape(-1)
    elements = np.empty(len(flat), object)
    elements[:] = [element.encode() if isinstance(element, str) else bytes(element) for element in flat]
    return elements.reshape(array.shape)


def _to_numpy(value: Any) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        found: Array = value.numpy()
        return found
    shape = tuple(value.shape())
    array = np.empty(shape, np.uint16)
    if array.nbytes:
        ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array
