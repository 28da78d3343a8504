"""What happens around a model's process: death, hanging, orphans, output, large tensors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from contract.errors import ExecutionTimeout, InstanceDied, ModelFailed
from workers.backends.base import InstanceRequest, LoadFailed
from workers.backends.python_process import ProcessInstance
from workers.repository.instances import instance_sources
from workers.repository.read import read_model

FIXTURES = Path(__file__).parents[1] / "models"
WAIT_S = 20.0


def request(*values: float) -> InstanceRequest:
    return InstanceRequest({"INPUT0": np.array([values], np.float32)}, ("OUTPUT0",))


@contextlib.contextmanager
def loaded(folder: Path) -> Iterator[ProcessInstance]:
    instance = ProcessInstance(next(instance_sources(read_model(folder), "1")))
    try:
        yield instance
    finally:
        instance.close()


def write_model(folder: Path, code: str, more: str = "") -> Path:
    (folder / "1").mkdir(parents=True)
    head = "import os, sys, subprocess, time\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
    (folder / "1" / "model.py").write_text(head + textwrap.dedent(code), encoding="utf-8")
    sides = "".join(f'{s} {{ name: "{s.upper()}0" data_type: TYPE_FP32 dims: -1 }}' for s in ("input", "output"))
    (folder / "config.pbtxt").write_text(f'backend: "python" max_batch_size: 8 {sides} {more}', encoding="utf-8")
    return folder


def gone(pid: int) -> bool:
    """Waits until the process is no more, or only a zombie that nobody has reaped."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_a_request_that_kills_its_process_is_an_instance_death_with_the_signals_name() -> None:
    with loaded(FIXTURES / "crash") as instance:
        assert isinstance(instance.run_requests([request(1)])[0], dict)
        with pytest.raises(InstanceDied, match="model 'crash', instance 0: its process was killed by SIGKILL"):
            instance.run_requests([request(1), request(13)])
        with pytest.raises(InstanceDied, match="its process is gone"):
            instance.run_requests([request(1)])
        assert gone(instance.pid)


def test_a_process_that_exits_says_with_which_code(tmp_path: Path) -> None:
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                os._exit(7)
    """
    with (
        loaded(write_model(tmp_path / "m", code)) as instance,
        pytest.raises(InstanceDied, match="its process ended with exit code 7"),
    ):
        instance.run_requests([request(1)])


def test_a_process_that_dies_while_it_loads_is_a_failed_load(tmp_path: Path) -> None:
    code = """
        class TritonPythonModel:
            def initialize(self, args):
                os._exit(9)
    """
    with pytest.raises(LoadFailed, match="exit code 9, while it loaded"), loaded(write_model(tmp_path / "m", code)):
        pass


def test_an_execution_that_never_returns_is_ended_after_max_execution_s() -> None:
    with loaded(FIXTURES / "hang") as instance:
        assert isinstance(instance.run_requests([request(1)])[0], dict)
        started_s = time.monotonic()
        with pytest.raises(ExecutionTimeout, match="no answer within max_execution_s = 1"):
            instance.run_requests([request(99)])
        assert 1.0 <= time.monotonic() - started_s < 5.0
        assert gone(instance.pid)


def test_what_a_hanging_model_started_ends_with_it(tmp_path: Path) -> None:
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
                open(os.path.join(os.path.dirname(__file__), "pid"), "w").write(str(child.pid))
                time.sleep(600)
    """
    folder = write_model(tmp_path / "m", code, 'parameters { key: "max_execution_s" value { string_value: "1" } }')
    with loaded(folder) as instance, pytest.raises(ExecutionTimeout):
        instance.run_requests([request(1)])
    assert gone(int((folder / "1" / "pid").read_text(encoding="utf-8")))


def test_a_models_process_ends_when_its_parent_is_killed_even_while_it_executes(tmp_path: Path) -> None:
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                open(os.path.join(os.path.dirname(__file__), "pid"), "w").write(str(os.getpid()) + ".")
                time.sleep(600)
    """
    folder = write_model(tmp_path / "m", code)
    parent_code = f"""
        import numpy as np
        from pathlib import Path
        from workers.backends.base import InstanceRequest
        from workers.backends.registry import load_instance
        from workers.repository.instances import instance_sources
        from workers.repository.read import read_model

        instance = load_instance(next(instance_sources(read_model(Path({str(folder)!r})), "1")))
        instance.run_requests([InstanceRequest({{"INPUT0": np.zeros((1, 1), np.float32)}}, ())])
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(parent_code)]) as parent:
        pid_file = folder / "1" / "pid"
        deadline_s = time.monotonic() + WAIT_S
        while not (pid_file.exists() and pid_file.read_text(encoding="utf-8").endswith(".")):
            assert time.monotonic() < deadline_s
            assert parent.poll() is None
            time.sleep(0.02)
        os.kill(parent.pid, signal.SIGKILL)
    assert gone(int(pid_file.read_text(encoding="utf-8").rstrip(".")))


def test_close_finalizes_and_ends_the_process_within_five_seconds(tmp_path: Path) -> None:
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                pass
            def finalize(self):
                open(os.path.join(os.path.dirname(__file__), "finalized"), "w").close()
                raise RuntimeError("ignored")
    """
    folder = write_model(tmp_path / "m", code)
    with loaded(folder) as instance:
        pass
    assert (folder / "1" / "finalized").exists()
    assert gone(instance.pid)
    instance.close()


def test_close_does_not_wait_for_a_finalize_that_never_returns(tmp_path: Path) -> None:
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                pass
            def finalize(self):
                time.sleep(600)
    """
    with loaded(write_model(tmp_path / "m", code)) as instance:
        started_s = time.monotonic()
    assert time.monotonic() - started_s < 5.0
    assert gone(instance.pid)


def test_what_a_model_prints_goes_to_standard_error_with_its_name(tmp_path: Path, capfd) -> None:
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                print("hello", "there")
                sys.stdout.write("half a ")
                sys.stdout.write("line\\n")
                pb_utils.Logger.log_warn("careful")
                pb_utils.Logger.log_verbose("not shown")
                os.write(1, b"native\\n")
                raise ValueError("boom")
    """
    with loaded(write_model(tmp_path / "m", code)) as instance:
        for _ in range(2):
            with pytest.raises(ModelFailed, match="ValueError: boom"):
                instance.run_requests([request(1)])
    out, err = capfd.readouterr()
    assert out == ""
    assert "[m/1#0] hello there\n[m/1#0] half a line\n[m/1#0] WARNING: careful\n" in err
    assert "native\n" in err
    assert "not shown" not in err
    assert err.count("[m/1#0] ValueError: boom") == 1
    assert "python_model.py" not in err


def test_a_tensor_of_64_mib_and_one_of_no_bytes_go_both_ways() -> None:
    with loaded(FIXTURES / "ident_f32") as instance:
        for shape in ((8, 2 * 1024 * 1024), (0, 3), (3, 0)):
            array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            (found,) = instance.run_requests([InstanceRequest({"INPUT0": array}, ("OUTPUT0",))])
            assert isinstance(found, dict), found
            np.testing.assert_array_equal(found["OUTPUT0"], array)


def test_many_small_requests_fit_into_one_execution() -> None:
    with loaded(FIXTURES / "ident_f32") as instance:
        found = instance.run_requests([request(n) for n in range(2000)])
    assert [float(result["OUTPUT0"][0, 0]) for result in found if isinstance(result, dict)] == list(range(2000))


def test_answers_of_an_execution_are_writable_and_not_shared_with_the_next() -> None:
    with loaded(FIXTURES / "ident_f32") as instance:
        (first,) = instance.run_requests([request(1)])
        assert isinstance(first, dict)
        first["OUTPUT0"] += 1
        (second,) = instance.run_requests([request(5)])
        assert isinstance(second, dict)
        assert (float(first["OUTPUT0"][0, 0]), float(second["OUTPUT0"][0, 0])) == (2.0, 5.0)


def test_two_instances_run_at_the_same_time(tmp_path: Path) -> None:
    code = """
        class TritonPythonModel:
            def initialize(self, args):
                self.own = args["model_instance_name"]

            def execute(self, requests):
                here = os.path.dirname(__file__)
                open(os.path.join(here, self.own + ".met"), "w").close()
                until = time.monotonic() + 20
                while len([name for name in os.listdir(here) if name.endswith(".met")]) < 2:
                    assert time.monotonic() < until, "the other instance does not run"
                    time.sleep(0.01)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.zeros((1, 1), np.float32))])]
    """
    folder = write_model(tmp_path / "m", code, "instance_group { kind: KIND_CPU count: 2 }")
    instances = [ProcessInstance(source) for source in instance_sources(read_model(folder), "1")]
    try:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda instance: instance.run_requests([request(1)]), instances))
    finally:
        for instance in instances:
            instance.close()
    assert [type(results[0]) for results in found] == [dict, dict]
