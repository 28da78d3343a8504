"""The onnxruntime backend on graphs made here: datatypes, text, shapes, threads, providers, errors."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as Onnx
from onnx import helper

from contract.errors import InvalidInput, ModelFailed
from contract.model_config import InstanceGroup
from contract.tensors import NUMPY_TYPES
from workers.backends import onnxruntime as backend
from workers.backends.base import InstanceSource, LoadFailed
from workers.backends.ort_options import ort_options
from workers.backends.registry import load_instance
from workers.repository import pbtxt
from workers.repository.convert import to_model_config
from workers.repository.instances import instance_sources
from workers.repository.read import read_model

FIXTURES = Path(__file__).parents[1] / "models"
ONNX_TYPES = {
    "BOOL": Onnx.BOOL,
    "UINT8": Onnx.UINT8,
    "UINT16": Onnx.UINT16,
    "UINT32": Onnx.UINT32,
    "UINT64": Onnx.UINT64,
    "INT8": Onnx.INT8,
    "INT16": Onnx.INT16,
    "INT32": Onnx.INT32,
    "INT64": Onnx.INT64,
    "FP16": Onnx.FLOAT16,
    "BF16": Onnx.BFLOAT16,
    "FP32": Onnx.FLOAT,
    "FP64": Onnx.DOUBLE,
    "BYTES": Onnx.STRING,
}


def write_identity(folder: Path, datatype: str = "FP32", shape: tuple = ("batch", "n")) -> None:
    x, y = (helper.make_tensor_value_info(name, ONNX_TYPES[datatype], shape) for name in ("X", "Y"))
    graph = helper.make_graph([helper.make_node("Identity", ["X"], ["Y"])], "g", [x], [y])
    write_graph(folder, graph)


def write_graph(folder: Path, graph: onnx.GraphProto) -> None:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def source(folder: Path, text: str = "", threads: int = 1) -> InstanceSource:
    """The first instance of version 1, of a config that the graph completes where `text` leaves something out."""
    triton = pbtxt.parse(f'backend: "onnxruntime" {text}', "config.pbtxt")
    if not backend.is_complete(triton, folder / "1"):
        triton = backend.complete(triton, folder, "1")
    config = to_model_config(triton, folder.name)
    return InstanceSource(
        config, "1", folder, config.instance_groups[0], 0, intra_op_threads=threads, triton_config=triton
    )


def load(folder: Path, text: str = "", threads: int = 1) -> backend.OnnxInstance:
    made = backend.load(source(folder, text, threads))
    assert isinstance(made, backend.OnnxInstance)
    return made


def why_not(folder: Path, text: str = "") -> str:
    with pytest.raises(LoadFailed) as failed:
        load(folder, text)
    return str(failed.value)


def objects(*elements: object) -> np.ndarray:
    array = np.empty((len(elements), 1), object)
    array[:, 0] = elements
    return array


def test_the_fixture_adds_and_subtracts() -> None:
    entry = read_model(FIXTURES / "add_sub")
    instance = load_instance(next(instance_sources(entry, "1")))
    a, b = np.arange(32, dtype=np.float32).reshape(2, 16), np.ones((2, 16), np.float32)
    found = instance.run({"INPUT0": a, "INPUT1": b}, ["OUTPUT1", "OUTPUT0"])
    np.testing.assert_array_equal(found["OUTPUT0"], a + b)
    np.testing.assert_array_equal(found["OUTPUT1"], a - b)
    assert not instance.is_request_wise
    assert not instance.holds_process
    assert list(instance.run({"INPUT0": a, "INPUT1": b}, ["OUTPUT1"])) == ["OUTPUT1"]


def test_the_mixed_fixture_takes_the_mean_over_the_values_that_count() -> None:
    instance = load_instance(next(instance_sources(read_model(FIXTURES / "mixed"), "1")))
    values = np.array([[1, 2, 3], [8, 0, 0]], np.float32)
    mask = np.array([[1, 1, 1], [1, 0, 0]], np.float32)
    np.testing.assert_array_equal(instance.run({"VALUES": values, "MASK": mask}, ["MEAN"])["MEAN"], [[2], [8]])


@pytest.mark.parametrize("datatype", sorted(NUMPY_TYPES))
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_every_fixed_size_datatype_comes_back_as_it_went_in(tmp_path: Path, datatype: str, rows: int) -> None:
    write_identity(tmp_path, datatype)
    dtype = NUMPY_TYPES[datatype]
    raw = bytes(range(rows * 2 * dtype.itemsize)) if datatype != "BOOL" else b"\x01\x00" * rows
    array = np.frombuffer(raw, dtype).reshape(rows, 2)
    found = load(tmp_path).run({"X": array}, ["Y"])["Y"]
    assert (found.dtype, found.shape, found.tobytes()) == (dtype, (rows, 2), raw)


def test_text_comes_back_byte_for_byte(tmp_path: Path) -> None:
    write_identity(tmp_path, "BYTES")
    texts = [t.encode() for t in ("plain", "naïve", "日本語", "🙂", "a\0b", "\u2019", "")]
    found = load(tmp_path).run({"X": objects(*texts)}, ["Y"])["Y"]
    assert found[:, 0].tolist() == texts
    assert found.shape == (7, 1)


def test_bytes_that_are_no_text_are_refused_by_input_and_element(tmp_path: Path) -> None:
    write_identity(tmp_path, "BYTES")
    with pytest.raises(InvalidInput, match="input 'X': element 1 is not UTF-8"):
        load(tmp_path).run({"X": objects(b"good", b"\xff\xfe")}, ["Y"])


def test_reshape_changes_what_the_graph_sees_and_not_what_the_caller_sees(tmp_path: Path) -> None:
    write_identity(tmp_path, "FP32", ("batch",))
    tensors = "{} {{ name: '{}' data_type: TYPE_FP32 dims: 1 reshape {{ shape: [ ] }} }}"
    text = f"max_batch_size: 8 {tensors.format('input', 'X')} {tensors.format('output', 'Y')}"
    array = np.array([[1], [2], [3]], np.float32)
    np.testing.assert_array_equal(load(tmp_path, text).run({"X": array}, ["Y"])["Y"], array)


def test_a_reshape_keeps_the_order_of_free_sizes(tmp_path: Path) -> None:
    write_identity(tmp_path, "INT32", ("batch", 2, "a", "b"))
    tensors = "{} {{ name: '{}' data_type: TYPE_INT32 dims: [ -1, 2, -1 ] reshape {{ shape: [ 2, -1, -1 ] }} }}"
    text = f"max_batch_size: 8 {tensors.format('input', 'X')} {tensors.format('output', 'Y')}"
    array = np.arange(2 * 3 * 2 * 5, dtype=np.int32).reshape(2, 3, 2, 5)
    np.testing.assert_array_equal(load(tmp_path, text).run({"X": array}, ["Y"])["Y"], array)


def test_a_failed_run_is_one_short_line_and_the_instance_lives(tmp_path: Path) -> None:
    write_identity(tmp_path, "FP32", ("batch", 2))
    instance = load(tmp_path)
    with pytest.raises(ModelFailed) as failed:
        instance.run({"X": np.zeros((1, 3), np.float32)}, ["Y"])
    assert "X" in failed.value.message
    assert "\n" not in failed.value.message
    assert "Traceback" not in failed.value.message
    assert "ONNXRuntimeError" not in failed.value.message
    assert instance.run({"X": np.zeros((1, 2), np.float32)}, ["Y"])["Y"].shape == (1, 2)


def test_a_closed_instance_says_so(tmp_path: Path) -> None:
    write_identity(tmp_path)
    instance = load(tmp_path)
    instance.close()
    instance.close()
    with pytest.raises(ModelFailed, match="closed"):
        instance.run({"X": np.zeros((1, 2), np.float32)}, ["Y"])


INPUT = 'input { name: "X" data_type: TYPE_FP32 dims: -1 }'
ACCELERATORS = "execution_accelerators {{ {}_execution_accelerator {{ name: '{}' }} }}"
OUTPUT = 'output { name: "Y" data_type: TYPE_FP32 dims: -1 }'


@pytest.mark.parametrize(
    ("text", "shape", "named"),
    [
        (INPUT.replace('"X"', '"Q"') + OUTPUT, ("b", "n"), "the graph has no input 'Q', it has X"),
        (INPUT.replace("FP32", "INT8") + OUTPUT, ("b", "n"), "input 'X' is INT8 in the config, FP32 in the graph"),
        (INPUT + OUTPUT.replace("-1", "[ 2, 3 ]"), ("b", 5), "'Y' has shape [-1, 2, 3] (with the batch dimension)"),
        (INPUT + OUTPUT.replace("-1", "4"), ("b", 5), "[-1, 4] (with the batch dimension) in the config, [-1, 5]"),
        (INPUT + OUTPUT, (1, "n"), "the first size of input 'X' is 1 in the graph"),
        (INPUT + OUTPUT, (8, "n"), "takes exactly that many rows in input 'X'"),
        (INPUT.replace("dims", "optional: true dims") + OUTPUT, ("b", "n"), "input 'X' is optional in the config"),
    ],
)
def test_a_config_that_the_graph_does_not_fit_is_refused_with_both_values(tmp_path, text, shape, named) -> None:
    write_identity(tmp_path, "FP32", shape)
    assert named in why_not(tmp_path, f"max_batch_size: 8 {text}")


def test_an_input_that_only_the_graph_has_is_named(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, Onnx.FLOAT, ["b", 2]) for name in ("X", "Z", "Y")]
    graph = helper.make_graph([helper.make_node("Add", ["X", "Z"], ["Y"])], "g", values[:2], values[2:])
    write_graph(tmp_path, graph)
    assert "the graph needs input 'Z'" in why_not(tmp_path, f"max_batch_size: 8 {INPUT} {OUTPUT}")


def test_a_file_that_is_no_graph_is_a_short_reason(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(b"not a graph")
    text = why_not(tmp_path, f"{INPUT} {OUTPUT}")
    assert text.startswith("1/model.onnx: ")
    assert "\n" not in text
    (tmp_path / "1" / "model.onnx").unlink()
    assert "No such file" in why_not(tmp_path, f"{INPUT} {OUTPUT} instance_group {{ kind: KIND_CPU }}")


@pytest.mark.parametrize(
    ("shape", "text", "max_batch_size", "dims", "reshape"),
    [
        (("b", "n"), "", 4, (-1,), None),
        (("b", 3), "max_batch_size: 2", 2, (3,), None),
        ((1, 3), "", 0, (1, 3), None),
        (("b",), "", 4, (1,), ()),
        (("b", "n"), INPUT.replace("-1", "[ -1, -1 ]"), 0, (-1, -1), None),
    ],
)
def test_a_config_is_completed_from_the_graph(tmp_path, shape, text, max_batch_size, dims, reshape) -> None:
    write_identity(tmp_path, "FP32", shape)
    config = source(tmp_path, text).config
    assert (config.max_batch_size, config.outputs[0].dims, config.outputs[0].reshape) == (max_batch_size, dims, reshape)
    assert (config.dynamic_batching is not None) == (max_batch_size == 4)
    backend.load(source(tmp_path, text))


def test_a_graph_that_gives_no_tensor_is_refused_with_a_hint(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("X", Onnx.FLOAT, ["b", 2])
    tensor = helper.make_tensor_type_proto(Onnx.FLOAT, ["b", 2])
    y = helper.make_value_info("Y", helper.make_sequence_type_proto(tensor))

    graph = helper.make_graph([helper.make_node("SequenceConstruct", ["X"], ["Y"])], "g", [x], [y])
    write_graph(tmp_path, graph)

    with pytest.raises(LoadFailed, match=r"output 'Y' is seq.*zipmap off"):
        source(tmp_path)


def test_instances_with_one_thread_share_a_session_and_others_do_not(tmp_path: Path) -> None:
    write_identity(tmp_path)
    one, two, many = load(tmp_path), load(tmp_path), load(tmp_path, threads=2)
    assert one._session is two._session
    assert many._session is not load(tmp_path, threads=2)._session
    one.close()
    assert two.run({"X": np.zeros((1, 2), np.float32)}, ["Y"])["Y"].shape == (1, 2)


def test_a_replaced_file_is_never_served_from_the_shared_session(tmp_path: Path) -> None:
    write_identity(tmp_path)
    old = load(tmp_path)
    write_identity(tmp_path, shape=("batch", "n", "m"))
    assert load(tmp_path)._session is not old._session


def test_a_shared_session_runs_from_several_threads_without_mixing_answers(tmp_path: Path) -> None:
    write_identity(tmp_path)
    instances = [load(tmp_path) for _ in range(4)]
    barrier = threading.Barrier(4, timeout=30)

    def work(number: int) -> bool:
        barrier.wait()
        wanted = np.full((3, 5), number, np.float32)
        return all((instances[number].run({"X": wanted}, ["Y"])["Y"] == number).all() for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_thread_and_graph_settings_reach_the_session(tmp_path: Path) -> None:
    write_identity(tmp_path)
    parameters = {
        "intra_op_thread_count": "2",
        "inter_op_thread_count": "3",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "enable_mem_pattern": "false",
        "session.intra_op.allow_spinning": "1",
    }
    text = " ".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in parameters.items())
    session = load(tmp_path, f"{text} optimization {{ graph {{ level: -1 }} }}")._session
    options = session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)
    assert (options.execution_mode.name, options.graph_optimization_level.name) == ("ORT_PARALLEL", "ORT_ENABLE_BASIC")
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"


def test_by_default_threads_do_not_spin_and_every_optimisation_is_on(tmp_path: Path) -> None:
    write_identity(tmp_path)
    options = load(tmp_path, threads=2)._session.get_session_options()
    assert options.intra_op_num_threads == 2
    assert options.graph_optimization_level.name == "ORT_ENABLE_ALL"
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('parameters { key: "thread_count" value { string_value: "2" } }', "parameters['thread_count'] is not known"),
        ('parameters { key: "intra_op_thread_count" value { string_value: "two" } }', "= 'two', it must be a whole"),
        ('parameters { key: "execution_mode" value { string_value: "2" } }', "= '2', it must be a whole number"),
        ('parameters { key: "enable_mem_arena" value { string_value: "yes" } }', "= 'yes', it must be 0 or 1"),
        ("optimization { graph { level: 7 } }", "optimization.graph.level = 7"),
        (f"optimization {{ {ACCELERATORS.format('gpu', 'magic')} }}", "'magic' is not known"),
    ],
)
def test_a_setting_that_is_not_known_is_named(tmp_path: Path, text: str, named: str) -> None:
    write_identity(tmp_path)
    assert named in why_not(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "provider", "extra"),
    [
        ("instance_group { kind: KIND_GPU }", "CUDAExecutionProvider", "headrace[worker-gpu]"),
        (
            f"instance_group {{ kind: KIND_GPU }} optimization {{ {ACCELERATORS.format('gpu', 'tensorrt')} }}",
            "TensorrtExecutionProvider",
            "headrace[worker-gpu]",
        ),
        (
            f"optimization {{ {ACCELERATORS.format('cpu', 'openvino')} }}",
            "OpenVINOExecutionProvider",
            "onnxruntime-openvino",
        ),
    ],
)
def test_a_missing_provider_is_named_with_what_installs_it(tmp_path, monkeypatch, text, provider, extra) -> None:
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    write_identity(tmp_path)
    reason = why_not(tmp_path, text)
    assert f"the config asks for {provider}, this onnxruntime has CPUExecutionProvider" in reason
    assert extra in reason


@pytest.mark.parametrize("datatype", ["FP32", "BF16", "BOOL"])
def test_inputs_and_outputs_that_are_bound_give_the_same_answer(tmp_path: Path, datatype: str) -> None:
    """The path of a GPU instance, on a session that runs on the CPU."""
    write_identity(tmp_path, datatype)
    cpu = source(tmp_path)
    bound = dataclasses.replace(cpu, group=InstanceGroup(kind="KIND_GPU", gpus=(0,)))
    instance = backend.OnnxInstance(bound, load(tmp_path)._session, ort_options(cpu))
    for rows in (2, 1, 3):
        array = np.ones((rows, 2), NUMPY_TYPES[datatype])
        found = instance.run({"X": array}, ["Y"])["Y"]
        assert (found.dtype, found.tolist()) == (array.dtype, array.tolist())


@pytest.mark.gpu
def test_a_gpu_instance_adds_and_subtracts(tmp_path: Path) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider")
    shutil.copytree(FIXTURES / "add_sub", tmp_path / "add_sub")
    config = tmp_path / "add_sub" / "config.pbtxt"
    config.write_text(config.read_text(encoding="utf-8").replace("KIND_CPU", "KIND_GPU"), encoding="utf-8")
    instance = load_instance(next(instance_sources(read_model(tmp_path / "add_sub"), "1")))
    a, b = np.arange(32, dtype=np.float32).reshape(2, 16), np.ones((2, 16), np.float32)
    np.testing.assert_array_equal(instance.run({"INPUT0": a, "INPUT1": b}, ["OUTPUT1"])["OUTPUT1"], a - b)
