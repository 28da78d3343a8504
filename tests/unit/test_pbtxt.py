"""config.pbtxt: what is read of it, and how a bad one is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from contract.model_config import DynamicBatching, InstanceGroup, QueuePolicy, TensorSpec
from workers.repository import pbtxt
from workers.repository.convert import to_model_config
from workers.repository.refusal import ConfigRefused

TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 4 } output { name: "Y" data_type: TYPE_STRING dims: -1 }'


LEVEL = "priority_levels: 1 default_priority_level: 1"


def convert(text: str, folder: str = "m", gpu_ids: tuple[int, ...] = (), backend: str = 'backend: "python"'):
    return to_model_config(pbtxt.parse(f"{backend} {text}", "m/config.pbtxt"), folder, gpu_ids=gpu_ids)


def refusal(text: str, **how: object) -> str:
    with pytest.raises(ConfigRefused) as refused:
        convert(text, **how)  # type: ignore[arg-type]
    return str(refused.value)


def int64_fields(descriptor, seen: set[str]) -> set[str]:
    if descriptor.full_name in seen:
        return set()
    seen.add(descriptor.full_name)
    found = set()
    for field in descriptor.fields:
        if field.message_type:
            found |= int64_fields(field.message_type, seen)
        elif field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64) and field.name != "key":
            found.add(field.name)
    return found


def test_every_64_bit_field_of_the_message_becomes_a_number() -> None:
    from tritonclient.grpc import model_config_pb2

    assert int64_fields(model_config_pb2.ModelConfig.DESCRIPTOR, set()) == pbtxt.INT64_FIELDS


def test_a_users_own_parameter_names_are_left_alone() -> None:
    config = pbtxt.parse(
        'parameters { key: "dims" value { string_value: "three" } } metric_tags { key: "shape" value: "x" }', "f"
    )
    assert config == {"parameters": {"dims": {"string_value": "three"}}, "metric_tags": {"shape": "x"}}


def test_the_json_form_has_every_default_and_numbers_for_64_bit_values() -> None:
    shown = pbtxt.with_defaults(
        pbtxt.parse(
            f'name: "m" {TENSORS} dynamic_batching {{ max_queue_delay_microseconds: 18446744073709551615 }}', "f"
        )
    )
    assert shown["input"][0]["dims"] == [4]
    assert shown["input"][0]["format"] == "FORMAT_NONE"
    assert shown["max_batch_size"] == 0
    assert shown["dynamic_batching"]["max_queue_delay_microseconds"] == 18446744073709551615


def test_a_whole_config_is_honoured_field_by_field() -> None:
    config = convert(f"""
        max_batch_size: 8 {TENSORS}
        input {{ name: "R" data_type: TYPE_INT64 dims: [ -1, 2 ] reshape {{ shape: [ 2, -1 ] }}
                 allow_ragged_batch: true optional: true }}
        instance_group {{ count: 2 kind: KIND_CPU name: "cpu" }}
        instance_group {{ kind: KIND_GPU gpus: [ 0, 3 ] }}
        dynamic_batching {{
          preferred_batch_size: [ 8, 4 ] max_queue_delay_microseconds: 100 priority_levels: 2 default_priority_level: 2
          default_queue_policy {{ timeout_action: DELAY default_timeout_microseconds: 5
                                  allow_timeout_override: true max_queue_size: 3 }}
          priority_queue_policy {{ key: 1 value {{ max_queue_size: 7 }} }}
        }}
        default_model_filename: "other.py"
        parameters {{ key: "max_execution_s" value {{ string_value: "1.5" }} }}
        parameters {{ key: "retry" value {{ string_value: "never" }} }}
        parameters {{ key: "mine" value {{ string_value: "yes" }} }}
    """)
    assert (config.name, config.backend, config.max_batch_size, config.default_model_filename) == (
        "m",
        "python",
        8,
        "other.py",
    )
    assert config.inputs[0] == TensorSpec("X", "FP32", (4,))
    assert config.inputs[1] == TensorSpec("R", "INT64", (-1, 2), is_optional=True, is_ragged=True, reshape=(2, -1))
    assert config.outputs == (TensorSpec("Y", "BYTES", (-1,)),)
    assert config.instance_groups == (InstanceGroup(2, "KIND_CPU", (), "cpu"), InstanceGroup(1, "KIND_GPU", (0, 3)))
    assert config.num_instances == 4
    assert config.dynamic_batching == DynamicBatching(
        preferred_batch_size=(4, 8),
        max_queue_delay_us=100,
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=QueuePolicy("DELAY", 5, True, 3),
        priority_queue_policy={1: QueuePolicy(max_queue_size=7)},
    )
    assert (config.max_execution_s, config.may_retry, config.parameters["mine"]) == (1.5, False, "yes")


def test_without_a_name_the_folder_counts_and_another_name_is_refused() -> None:
    assert convert(TENSORS, folder="entrée_入力").name == "entrée_入力"
    assert "name = 'n'" in (text := refusal(f'name: "n" {TENSORS}'))
    assert "'m'" in text


@pytest.mark.parametrize(
    ("kind", "gpu_ids", "backend", "expected"),
    [
        ("", (), "onnxruntime", InstanceGroup(1, "KIND_CPU")),
        ("", (0, 1), "onnxruntime", InstanceGroup(1, "KIND_GPU", (0, 1))),
        ("", (0, 1), "python", InstanceGroup(1, "KIND_CPU")),
        ("kind: KIND_GPU", (0, 1), "python", InstanceGroup(1, "KIND_GPU", (0, 1))),
        ("kind: KIND_AUTO gpus: 1", (0, 1), "python", InstanceGroup(1, "KIND_GPU", (1,))),
        ("kind: KIND_CPU", (0, 1), "onnxruntime", InstanceGroup(1, "KIND_CPU")),
        ("kind: KIND_MODEL", (), "python", InstanceGroup(1, "KIND_MODEL")),
    ],
)
def test_the_kind_of_an_instance_group_is_decided_where_it_is_read(kind, gpu_ids, backend, expected) -> None:
    config = convert(f"instance_group {{ {kind} }}", gpu_ids=gpu_ids, backend=f'backend: "{backend}"')
    assert config.instance_groups == (expected,)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("max_batch_size: -2", "max_batch_size = -2"),
        ('input { name: "X" dims: 4 }', "data_type = TYPE_INVALID"),
        ('input { name: "X" data_type: TYPE_FP32 }', "input 'X': dims are missing"),
        ('input { name: "X" data_type: TYPE_FP32 dims: [ 4, 0 ] }', "dims = [4, 0]"),
        ('input { name: "X" data_type: TYPE_FP32 dims: -2 }', "dims = [-2]"),
        ("input { data_type: TYPE_FP32 dims: 1 }", "input[0] has no name"),
        ('input { name: "X" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 5 ] } }', "reshape = [5]"),
        ('input { name: "X" data_type: TYPE_FP32 dims: 4 format: FORMAT_NCHW }', "FORMAT_NCHW needs 3 dims"),
        (f"{TENSORS} {TENSORS}", "'X' is given more than once"),
        ("max_batch_size: 4 dynamic_batching { preferred_batch_size: 5 }", "preferred_batch_size has 5"),
        ("dynamic_batching { priority_levels: 2 }", "default_priority_level = 0"),
        ("dynamic_batching { priority_levels: 2 default_priority_level: 3 }", "default_priority_level = 3"),
        ("dynamic_batching { default_priority_level: 1 }", "default_priority_level = 1"),
        (f"dynamic_batching {{ {LEVEL} priority_queue_policy {{ key: 2 value {{ }} }} }}", "level 2"),
        (
            "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
            "preserve_ordering",
        ),
        ("instance_group { kind: KIND_CPU gpus: 0 }", "gpus = [0]"),
        ("instance_group { count: -1 }", "count = -1"),
        ('default_model_filename: "../x.py"', "default_model_filename = '../x.py'"),
        ('default_model_filename: "/etc/passwd"', "default_model_filename = '/etc/passwd'"),
        ('platform: "caffe2_netdef"', "platform = 'caffe2_netdef'"),
        ('platform: "onnxruntime_onnx"', "belongs to backend 'onnxruntime'"),
        ('parameters { key: "max_execution_s" value { string_value: "0" } }', "'max_execution_s'] = '0'"),
        ('parameters { key: "max_execution_s" value { string_value: "nan" } }', "'max_execution_s'] = 'nan'"),
        ('parameters { key: "retry" value { string_value: "3" } }', "'retry'] = '3'"),
        ('parameters { key: "default_version" value { string_value: "v1" } }', "'default_version'] = 'v1'"),
        ('parameters { key: "execution" value { string_value: "gpu" } }', "'execution'] = 'gpu'"),
        ('parameters { key: "max_padded_tokens" value { string_value: "0" } }', "max_padded_tokens is '0'"),
        ('parameters { key: "base_tokens" value { string_value: "few" } }', "base_tokens is 'few'"),
        ('parameters { key: "headrace.retry" value { string_value: "never" } }', "'headrace.retry'] is not known"),
        ("optimization { graph { level: 1 } }", "optimization.graph is not supported by backend 'python'"),
        ('model_warmup { inputs { key: "Q" value { data_type: TYPE_FP32 } } }', "the model has no such input"),
        (TENSORS + 'model_warmup { inputs { key: "X" value { data_type: TYPE_FP16 } } }', "data_type = TYPE_FP16"),
    ],
)
def test_a_value_that_cannot_be_honoured_is_named(text: str, named: str) -> None:
    assert named in refusal(text)


def test_a_config_without_backend_and_platform_says_what_is_missing() -> None:
    assert "neither backend nor platform" in refusal(TENSORS, backend="")


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"name: \xff", "f: byte 6 is not UTF-8"),
        (b"#" * (pbtxt.MAX_CONFIG_BYTES + 1), "f: it is longer than 4194304 bytes"),
    ],
)
def test_a_file_that_is_no_text_is_refused(data: bytes, named: str) -> None:
    with pytest.raises(ConfigRefused, match=named):
        pbtxt.decode(data, "f")


def test_importing_the_repository_reader_does_not_import_the_protocol_messages() -> None:

    code = (
        "import sys, workers.repository.read as _;"
        "print([m for m in sys.modules if m.split('.')[0] in ('grpc', 'tritonclient', 'onnxruntime')])"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


BESIDE_ANOTHER_CLIENT = """
import sys
from google.protobuf import descriptor_pb2, descriptor_pool
file = descriptor_pb2.FileDescriptorProto(name="another_clients.proto", package="inference", syntax="proto3")
file.message_type.add(name="ServerLiveRequest")
descriptor_pool.Default().Add(file)
from workers.repository import pbtxt
assert pbtxt.parse('name: "a" max_batch_size: 4', "f") == {"name": "a", "max_batch_size": 4}
assert "grpc" not in sys.modules
"""


def test_a_config_is_read_beside_a_client_that_has_registered_the_same_services() -> None:
    subprocess.run([sys.executable, "-c", BESIDE_ANOTHER_CLIENT], check=True, timeout=60)
