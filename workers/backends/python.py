"""The python backend: runs a Triton model.py unchanged, in a process of its own or, if asked, in the worker's.

Source: Triton python_backend README.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from contract.errors import ModelFailed
from contract.model_config import InstanceGroup, ModelConfig
from contract.tensors import Array
from workers.backends.base import InstanceRequest, InstanceSource, LoadFailed, ModelInstance, RequestResult
from workers.backends.gpus import visible_gpus
from workers.backends.python_model import LoadedModel
from workers.backends.python_process import ProcessInstance, completed_in_process
from workers.repository import pbtxt
from workers.repository.convert import check_inside, model_filename
from workers.repository.pbtxt import TritonConfig

_MAX_SOURCE_BYTES: Final = 4 * 1024 * 1024


def load(source: InstanceSource) -> ModelInstance:
    """One instance.

    Raises:
        LoadFailed: the config asks for what isn't there, or model.py can't be imported or initialized.
    """
    config = source.config
    if "EXECUTION_ENV_PATH" in config.parameters:
        raise LoadFailed("parameters['EXECUTION_ENV_PATH'] is not supported: models run in the worker's environment")
    if source.group.kind == "KIND_GPU" and source.device_id is None:
        raise LoadFailed("instance_group kind = KIND_GPU, but this machine shows no GPU")
    if not config.outputs:
        raise LoadFailed("the config has no outputs, and model.py's auto_complete_config added none")
    if config.parameters.get("execution") == "worker":
        return WorkerInstance(source)
    return ProcessInstance(source)


def is_complete(triton: TritonConfig, version_dir: Path) -> bool:
    """Whether model.py has nothing to add; a process is only started for one that speaks of auto_complete_config."""
    path = version_dir / check_inside("default_model_filename", model_filename(triton, "python"))
    try:
        with path.open("rb") as file:
            return b"auto_complete_config" not in file.read(_MAX_SOURCE_BYTES)
    except OSError:
        return True


def complete(triton: TritonConfig, model_dir: Path, version: str) -> TritonConfig:
    """The config with what `auto_complete_config` adds."""
    config = ModelConfig(name=model_dir.name, backend="python", default_model_filename=model_filename(triton, "python"))
    shown = pbtxt.with_defaults(triton)
    source = InstanceSource(config, version, model_dir, InstanceGroup(), 0, triton_config=shown)
    return pbtxt.without_defaults(completed_in_process(source))


def offered_gpus() -> tuple[int, ...]:
    """GPUs that a KIND_GPU model is given; what it does with them is its own affair."""
    return visible_gpus()


class WorkerInstance:
    """A python model in the worker's own process: no copy and no hop, and no protection from what it does."""

    is_request_wise = True
    holds_process = False

    def __init__(self, source: InstanceSource) -> None:
        self._model = LoadedModel(source)

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:  # noqa: ARG002 - the Protocol's
        """Not this backend's way: it runs single requests."""
        raise ModelFailed("backend 'python' runs single requests, not joined arrays")

    def run_requests(self, requests: Sequence[InstanceRequest]) -> Sequence[RequestResult]:
        """One execution; see ModelInstance."""
        return self._model.run(requests)

    def close(self) -> None:
        """Finalize."""
        self._model.close()
