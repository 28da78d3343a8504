"""Finds a backend by its name and asks it to load, or to complete a config. Knows no engine; imports one on demand."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any, Final, Protocol, cast

from workers.backends.base import InstanceSource, LoadFailed, ModelInstance
from workers.repository.pbtxt import TritonConfig
from workers.repository.refusal import ConfigRefused

_BACKENDS: Final = {
    "onnxruntime": ("workers.backends.onnxruntime", "onnxruntime", "headrace[worker]"),
    "python": ("workers.backends.python", "", ""),
}
"""Backend name: its module, the library it needs and the extra that installs it."""


class Backend(Protocol):
    """What a backend module offers."""

    def load(self, source: InstanceSource) -> ModelInstance:
        """One instance.

        Raises:
            LoadFailed: why it can't be loaded.
        """

    def is_complete(self, triton: TritonConfig, version_dir: Path) -> bool:
        """Whether the config needs nothing from the model itself."""

    def complete(self, triton: TritonConfig, model_dir: Path, version: str) -> TritonConfig:
        """The config with what the model itself says filled in.

        Raises:
            LoadFailed: the model can't be asked.
        """

    def offered_gpus(self) -> tuple[int, ...]:
        """GPUs of this machine that the backend can use."""


def load_instance(source: InstanceSource) -> ModelInstance:
    """One instance of a model version; blocks until it can run.

    Raises:
        LoadFailed: no such backend, its library is missing, or the model can't be loaded; says what to do.
    """
    return find_backend(source.config.backend).load(source)


def is_complete(triton: TritonConfig, version_dir: Path, backend: str) -> bool:
    """Whether the config needs nothing from the model itself; True for a backend that isn't there."""
    return backend not in _BACKENDS or _module(backend).is_complete(triton, version_dir)


def completed(triton: TritonConfig, model_dir: Path, version: str, backend: str) -> TritonConfig:
    """The config with what the model itself says filled in.

    Raises:
        ConfigRefused: the model can't be asked; says why.
    """
    try:
        return find_backend(backend).complete(triton, model_dir, version)
    except LoadFailed as error:
        raise ConfigRefused(f"the config can't be completed from the model: {error}") from None


def offered_gpus(backend: str) -> tuple[int, ...]:
    """GPUs of this machine that a backend can use; none for a backend that isn't there."""
    return _module(backend).offered_gpus() if backend in _BACKENDS else ()


def find_backend(name: str) -> Backend:
    """The backend's module.

    Raises:
        LoadFailed: no such backend, or its library isn't installed; names what is there and what installs it.
    """
    if name not in _BACKENDS:
        there = ", ".join(sorted(_BACKENDS))
        raise LoadFailed(f"there is no backend {name!r}, there are {there}; docs/formats.md says what can be converted")
    _, library, extra = _BACKENDS[name]
    if library and importlib.util.find_spec(library) is None:
        raise LoadFailed(f"backend {name!r} needs {library}, which is not installed: pip install '{extra}'")
    return _module(name)


def _module(name: str) -> Backend:
    module: Any = importlib.import_module(_BACKENDS[name][0])
    return cast("Backend", module)
