"""The python backend runs Triton-style model.py files unchanged: in a process of its own and in the worker's."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from contract.errors import Cancelled, InvalidInput, ModelFailed, Unavailable
from contract.tensors import NUMPY_TYPES
from workers.backends.base import InstanceRequest, LoadFailed, ModelInstance
from workers.backends.registry import load_instance
from workers.repository.instances import instance_sources
from workers.repository.read import read_model

FIXTURES = Path(__file__).parents[1] / "models"
IN_OUT = 'input { name: "X" data_type: TYPE_FP32 dims: -1 } output { name: "Y" data_type: TYPE_FP32 dims: -1 }'
CONFIG = f"max_batch_size: 8 {IN_OUT}"
HEAD = "import json\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"

Load = Callable[..., ModelInstance]


@pytest.fixture(params=["process", "worker"])
def execution(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def load(tmp_path: Path, execution: str) -> Iterator[Load]:
    """Writes a model `m` with this code and config, and loads it as `execution` says."""
    instances: list[ModelInstance] = []

    def make(code: str, config: str = CONFIG, files: Mapping[str, str] | None = None) -> ModelInstance:
        where = f'parameters {{ key: "execution" value {{ string_value: "{execution}" }} }}'
        write_model(tmp_path / "m", code, f"{config} {where}", files or {})
        entry = read_model(tmp_path / "m")
        assert entry.config is not None, entry.reason
        instances.append(load_instance(next(instance_sources(entry, "1"))))
        return instances[-1]

    yield make
    for instance in instances:
        instance.close()


def write_model(folder: Path, code: str, config: str, files: Mapping[str, str]) -> None:
    (folder / "1").mkdir(parents=True)
    for name, text in files.items():
        (folder / "1" / name).write_text(text, encoding="utf-8")
    (folder / "1" / "model.py").write_text(HEAD + textwrap.dedent(code), encoding="utf-8")
    (folder / "config.pbtxt").write_text(f'backend: "python" {config}', encoding="utf-8")


def rows(*numbers: float) -> InstanceRequest:
    return InstanceRequest({"X": np.array([[n] for n in numbers], np.float32)}, ("Y",), request_id="a")


DOUBLE = """
    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
                answers.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("Y", x * 2)]))
            return answers
"""


def test_a_model_answers_each_request_in_order(load: Load, execution: str) -> None:
    instance = load(DOUBLE)
    first, second = instance.run_requests([rows(1, 2), rows(3)])
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    np.testing.assert_array_equal(first["Y"], [[2], [4]])
    np.testing.assert_array_equal(second["Y"], [[6]])
    assert instance.is_request_wise
    assert instance.holds_process == (execution == "process")


def test_initialize_gets_tritons_arguments_and_the_whole_config(load: Load) -> None:
    instance = load(
        """
        class TritonPythonModel:
            def initialize(self, args):
                assert all(isinstance(value, str) for value in args.values())
                config = json.loads(args["model_config"])
                x = pb_utils.get_input_config_by_name(config, "X")
                y = pb_utils.get_output_config_by_name(config, "Y")
                assert pb_utils.get_input_config_by_name(config, "Q") is None
                assert x["dims"] == [-1]
                self.dtype = pb_utils.triton_string_to_numpy(y["data_type"])
                assert not pb_utils.using_decoupled_model_transaction_policy(config)
                self.seen = {key: value for key, value in args.items() if key != "model_config"}
                self.seen["mine"] = config["parameters"]["mine"]["string_value"]
                self.seen["max_batch_size"] = config["max_batch_size"]

            def execute(self, requests):
                text = json.dumps(self.seen).encode()
                return [pb_utils.InferenceResponse([pb_utils.Tensor("T", np.array([[text]], np.object_))])]
        """,
        f'max_batch_size: 8 {IN_OUT} output {{ name: "T" data_type: TYPE_STRING dims: 1 }}'
        'parameters { key: "mine" value { string_value: "é" } } instance_group { kind: KIND_CPU name: "g" }',
    )
    (found,) = instance.run_requests([InstanceRequest({"X": np.zeros((1, 1), np.float32)}, ("T",))])
    assert isinstance(found, dict)
    seen = json.loads(found["T"][0, 0])
    assert Path(seen.pop("model_repository")).name == "m"
    assert seen == {
        "model_instance_kind": "CPU",
        "model_instance_name": "g_0",
        "model_instance_device_id": "0",
        "model_version": "1",
        "model_name": "m",
        "mine": "é",
        "max_batch_size": 8,
    }


def test_a_request_tells_what_the_caller_sent(load: Load) -> None:
    instance = load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                (request,) = requests
                assert request.request_id() == "id-1"
                assert request.correlation_id() == 7
                assert request.requested_output_names() == ["Y"]
                assert json.loads(request.parameters()) == {"top": 5, "name": "n", "flag": True}
                assert request.timeout() == 1000
                assert request.model_name() == "m"
                assert request.model_version() == 1
                assert request.flags() == 0
                assert not request.is_cancelled()
                assert [tensor.name() for tensor in request.inputs()] == ["X"]
                x = request.inputs()[0]
                assert (x.shape(), x.is_cpu(), x.triton_dtype()) == ([1, 2], True, 11)
                assert pb_utils.get_input_tensor_by_name(request, "Q") is None
                response = pb_utils.InferenceResponse([x.from_dlpack("Y", x), pb_utils.Tensor("Z", x.as_numpy())])
                assert pb_utils.get_output_tensor_by_name(response, "Z").name() == "Z"
                return [response]
        """,
        f'max_batch_size: 8 {IN_OUT} output {{ name: "Z" data_type: TYPE_FP32 dims: -1 }}',
    )
    x = np.array([[1, 2]], np.float32)
    request = InstanceRequest({"X": x}, ("Y",), "id-1", 7, {"top": 5, "name": "n", "flag": True}, 1000)
    (found,) = instance.run_requests([request])
    assert isinstance(found, dict), found
    assert list(found) == ["Y"]
    np.testing.assert_array_equal(found["Y"], x)


def test_the_error_of_one_request_is_its_own(load: Load) -> None:
    instance = load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                codes = {1: pb_utils.TritonError.INVALID_ARG, 2: pb_utils.TritonError.UNAVAILABLE}
                codes |= {3: pb_utils.TritonError.CANCELLED, 4: pb_utils.TritonError.INTERNAL}
                answers = []
                for request in requests:
                    x = request.inputs()[0]
                    number = int(x.as_numpy()[0, 0])
                    error = pb_utils.TritonError(f"no {number}", codes[number]) if number in codes else None
                    answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy())], error))
                return answers
        """
    )
    found = instance.run_requests([rows(n) for n in range(6)])
    assert [type(result) for result in found] == [dict, InvalidInput, Unavailable, Cancelled, ModelFailed, dict]
    assert [result.message for result in found if isinstance(result, ModelFailed)] == ["no 4"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('bad row\\nmore')", "ValueError: bad row"),
        ("raise pb_utils.TritonModelException('as it is')", "as it is"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyError()", "KeyError"),
        ("return None", "execute returned NoneType, it must return a list of 2 responses"),
        ("return []", "execute returned 0 responses for 2 requests"),
        ("return [None] * 3", "execute returned 3 responses for 2 requests"),
        ("raise RuntimeError('x' * 5000)", "RuntimeError: xxx"),
    ],
)
def test_a_failed_execution_fails_as_a_whole_and_the_instance_lives(load: Load, body: str, message: str) -> None:
    instance = load(
        f"""
        class TritonPythonModel:
            def execute(self, requests):
                if len(requests) == 2:
                    {body}
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", requests[0].inputs()[0].as_numpy())])]
        """
    )
    with pytest.raises(ModelFailed) as failed:
        instance.run_requests([rows(1), rows(2)])
    assert failed.value.message.startswith(message)
    assert len(failed.value.message) <= 400
    assert "\n" not in failed.value.message
    assert isinstance(instance.run_requests([rows(1)])[0], dict)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ("None", "execute returned NoneType where an InferenceResponse belongs"),
        ("answer('Q', x)", "the response lacks output 'Y', it has Q"),
        ("answer('Y', x.astype(np.float64))", "output 'Y' is FP64 in the response, FP32 in the config"),
        ("answer('Y', x[0])", "output 'Y' is [1] in the response, [-1] per row in the config"),
        ("answer('Y', np.array(1, np.float32))", "output 'Y' is [] in the response, [-1] per row in the config"),
        ("pb_utils.InferenceResponse([])", "the response lacks output 'Y', it has none"),
    ],
)
def test_an_answer_that_does_not_fit_the_config_fails_its_request_alone(load: Load, response, message) -> None:
    instance = load(
        f"""
        def answer(name, array):
            return pb_utils.InferenceResponse([pb_utils.Tensor(name, array)])

        class TritonPythonModel:
            def execute(self, requests):
                x = requests[0].inputs()[0].as_numpy()
                return [{response}, answer("Y", x)]
        """
    )
    bad, good = instance.run_requests([rows(1), rows(1)])
    assert isinstance(bad, ModelFailed)
    assert bad.message == message
    assert isinstance(good, dict)


def test_outputs_that_nobody_asked_for_may_be_left_out(load: Load) -> None:
    second = 'output { name: "Z" data_type: TYPE_FP32 dims: [ -1 ] }'
    instance = load(DOUBLE, CONFIG + second)
    any_outputs, both = InstanceRequest(rows(1).inputs, ()), InstanceRequest(rows(1).inputs, ("Y", "Z"))
    answer, refused = instance.run_requests([any_outputs, both])
    assert isinstance(answer, dict)
    assert list(answer) == ["Y"]
    assert isinstance(refused, ModelFailed)
    assert refused.message == "the response lacks output 'Z', it has Y"


def test_coroutines_reshapes_and_imports_from_its_folder_work(load: Load) -> None:
    code = """
        from .beside import FACTOR
        import beside

        class TritonPythonModel:
            async def execute(self, requests):
                x = requests[0].inputs()[0].as_numpy()
                assert x.shape == (2,)
                assert beside.FACTOR == FACTOR
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * FACTOR)])]
    """
    config = """
        max_batch_size: 8
        input { name: "X" data_type: TYPE_FP32 dims: 1 reshape { shape: [ ] } }
        output { name: "Y" data_type: TYPE_FP32 dims: 1 reshape { shape: [ ] } }
    """
    instance = load(code, config, {"beside.py": "FACTOR = 3"})
    (found,) = instance.run_requests([rows(1, 2)])
    assert isinstance(found, dict), found
    np.testing.assert_array_equal(found["Y"], [[3], [6]])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = (", "model.py can't be imported: SyntaxError: '(' was never closed"),
        ("import nowhere", "model.py can't be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("x = 1", "model.py has no class TritonPythonModel"),
        ("class TritonPythonModel: pass", "TritonPythonModel has no execute"),
        (
            "class TritonPythonModel:\n    def initialize(self, args): raise OSError('no weights')",
            "initialize failed: OSError: no weights",
        ),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why_in_one_line(load: Load, code: str, message: str) -> None:
    with pytest.raises(LoadFailed) as failed:
        load(code)
    assert message in str(failed.value)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('parameters { key: "EXECUTION_ENV_PATH" value { string_value: "e.tar.gz" } }', "EXECUTION_ENV_PATH"),
        ("instance_group { kind: KIND_GPU }", "this machine shows no GPU"),
    ],
)
def test_what_is_not_there_is_refused_by_name(load: Load, config: str, message: str, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(LoadFailed, match=message):
        load(DOUBLE, f"max_batch_size: 8 {IN_OUT} {config}")


def test_a_model_without_outputs_is_refused(load: Load) -> None:
    with pytest.raises(LoadFailed, match="the config has no outputs"):
        load(DOUBLE, "max_batch_size: 8")


def test_every_datatype_survives_the_trip_to_a_model_and_back() -> None:
    entry = read_model(FIXTURES / "ident_all")
    instance = load_instance(next(instance_sources(entry, "1")))
    inputs = {"INPUT_STRING": np.array([[b"na\xc3\xafve", b"", b"\xff\0\xfe"]], object)}
    for name, dtype in NUMPY_TYPES.items():
        raw = b"\x01\x00\x01" if name == "BOOL" else bytes(range(3 * dtype.itemsize))
        inputs[f"INPUT_{name}"] = np.frombuffer(raw, dtype).reshape(1, 3)
    try:
        assert entry.config is not None
        outputs = tuple(spec.name for spec in entry.config.outputs)
        (found,) = instance.run_requests([InstanceRequest(inputs, outputs)])
    finally:
        instance.close()
    assert isinstance(found, dict), found
    assert found["OUTPUT_STRING"].tolist() == inputs["INPUT_STRING"].tolist()
    for name, dtype in NUMPY_TYPES.items():
        assert found[f"OUTPUT_{name}"].dtype == dtype, name
        assert found[f"OUTPUT_{name}"].tobytes() == inputs[f"INPUT_{name}"].tobytes(), name


@pytest.mark.parametrize(
    "array",
    ["np.array([['ä', 'b']])", "np.array([[b'\\xc3\\xa4', b'b']])", "np.array([['ä', b'b']], object)"],
)
def test_text_may_be_given_as_str_as_bytes_or_as_objects(load: Load, array: str) -> None:
    code = f"""
        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", {array})]) for _ in requests]
    """
    instance = load(code, CONFIG.replace('"Y" data_type: TYPE_FP32', '"Y" data_type: TYPE_STRING'))
    (found,) = instance.run_requests([rows(1)])
    assert isinstance(found, dict), found
    assert found["Y"].tolist() == [["ä".encode(), b"b"]]


def test_the_utilities_are_only_importable_where_a_model_runs() -> None:
    code = (
        "import sys, workers.backends.registry, workers.repository.read;"
        "print('triton_python_backend_utils' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "False"
