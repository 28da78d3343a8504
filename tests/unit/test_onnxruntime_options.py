"""What a config asks of ONNX Runtime's GPU providers, by their own option names. No GPU is needed to decide it."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.model_config import InstanceGroup, ModelConfig
from workers.backends.base import InstanceSource, LoadFailed
from workers.backends.gpus import visible_gpus
from workers.backends.ort_options import ort_options
from workers.backends.registry import load_instance
from workers.repository import pbtxt
from workers.repository.convert import to_model_config
from workers.repository.parameters import ANY_BACKEND


def providers(text: str) -> dict[str, dict[str, str]]:
    triton = pbtxt.parse(f'backend: "onnxruntime" instance_group {{ kind: KIND_GPU gpus: 2 }} {text}', "f")
    config = to_model_config(triton, "m")
    group = config.instance_groups[0]
    source = InstanceSource(config, "1", Path("m"), group, 0, device_id=group.gpus[0], triton_config=triton)
    return {name: dict(options) for name, options in ort_options(source).providers}


def accelerator(name: str, **parameters: str) -> str:
    given = " ".join(f'parameters {{ key: "{k}" value: "{v}" }}' for k, v in parameters.items())
    return f'optimization {{ execution_accelerators {{ gpu_execution_accelerator {{ name: "{name}" {given} }} }} }}'


def test_a_gpu_instance_runs_on_its_device_and_falls_back_to_the_cpu_only_per_node() -> None:
    found = providers("")
    assert list(found) == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert found["CUDAExecutionProvider"] == {"device_id": "2"}


def test_tensorrt_comes_first_with_its_options_by_their_names() -> None:
    found = providers(
        accelerator("tensorrt", precision_mode="FP16", max_workspace_size_bytes="1024", trt_engine_cache_enable="1")
    )
    assert list(found) == ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    assert found["TensorrtExecutionProvider"] == {
        "device_id": "2",
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1024",
        "trt_engine_cache_enable": "1",
    }


def test_cuda_options_come_from_the_accelerator_and_from_the_old_parameters() -> None:
    old = 'parameters { key: "cudnn_conv_algo_search" value { string_value: "1" } }'
    found = providers(accelerator("cuda", cudnn_conv_use_max_workspace="0") + old)
    assert found["CUDAExecutionProvider"] == {
        "device_id": "2",
        "cudnn_conv_algo_search": "HEURISTIC",
        "cudnn_conv_use_max_workspace": "0",
    }


def test_headraces_own_parameters_are_no_business_of_the_engine() -> None:
    given = {"max_execution_s": "5", "retry": "never", "base_tokens": "64", "max_padded_tokens": "8192"}
    given |= {
        "tokenizer": "t.json",
        "max_tokens": "9",
        "truncation": "left",
        "embedding_output": "OUT",
        "default_version": "1",
    }
    assert set(given) == set(ANY_BACKEND)
    text = " ".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in given.items())
    text += 'max_batch_size: 4 input { name: "input_ids" data_type: TYPE_INT64 dims: -1 }'
    text += 'output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'
    assert providers(text) == providers("")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (accelerator("tensorrt", precision_mode="FP8"), "precision_mode = 'FP8'"),
        (accelerator("tensorrt", workspace="1"), "parameter 'workspace' is not known"),
    ],
)
def test_an_accelerator_parameter_that_is_not_known_is_named(text: str, named: str) -> None:
    with pytest.raises(LoadFailed, match=named):
        providers(text)


@pytest.mark.parametrize(("chosen", "most"), [("", 0), ("-1", 0), ("0,-1,2", 1)])
def test_cuda_visible_devices_hides_gpus(monkeypatch: pytest.MonkeyPatch, chosen: str, most: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert len(visible_gpus()) <= most


def test_a_backend_that_is_not_there_is_named_beside_those_that_are() -> None:
    source = InstanceSource(ModelConfig("m", "tensorflow"), "1", Path("m"), InstanceGroup(), 0)
    with pytest.raises(LoadFailed, match="there is no backend 'tensorflow', there are onnxruntime, python"):
        load_instance(source)


def test_a_backend_whose_library_is_missing_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    source = InstanceSource(ModelConfig("m", "onnxruntime"), "1", Path("m"), InstanceGroup(), 0)
    with pytest.raises(LoadFailed, match=r"not installed: pip install 'headrace\[worker\]'"):
        load_instance(source)
