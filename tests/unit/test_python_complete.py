"""`auto_complete_config` of a model.py fills in what config.pbtxt leaves out."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from contract.model_config import DynamicBatching, TensorSpec
from workers.backends.registry import load_instance
from workers.repository.instances import instance_sources
from workers.repository.read import read_model

COMPLETING = """
    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(auto_complete_model_config):
            config = auto_complete_model_config.as_dict()
            assert config["name"] == "m"
            have = [tensor["name"] for tensor in config["input"]]
            if "X" not in have:
                auto_complete_model_config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [4]})
            auto_complete_model_config.add_output({"name": "Y", "data_type": "TYPE_STRING", "dims": [-1, 2]})
            auto_complete_model_config.set_max_batch_size(16)
            auto_complete_model_config.set_dynamic_batching()
            return auto_complete_model_config

        def execute(self, requests):
            raise AssertionError
"""


def write(folder: Path, code: str, config: str | None = None) -> Path:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(textwrap.dedent(code), encoding="utf-8")
    if config is not None:
        (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    return folder


@pytest.mark.parametrize("config", [None, "", 'backend: "python"'])
def test_a_model_without_a_config_describes_itself(tmp_path: Path, config: str | None) -> None:
    entry = read_model(write(tmp_path / "m", COMPLETING, config))
    assert entry.config is not None, entry.reason
    assert entry.config.inputs == (TensorSpec("X", "FP32", (4,)),)
    assert entry.config.outputs == (TensorSpec("Y", "BYTES", (-1, 2)),)
    assert (entry.config.max_batch_size, entry.config.dynamic_batching) == (16, DynamicBatching())
    assert entry.triton_config["output"][0]["dims"] == [-1, 2]
    load_instance(next(instance_sources(entry, "1"))).close()


def test_what_the_config_says_stays(tmp_path: Path) -> None:
    config = """
        max_batch_size: 8
        input { name: "X" data_type: TYPE_INT8 dims: 7 }
        dynamic_batching { preferred_batch_size: 8 }
    """
    entry = read_model(write(tmp_path / "m", COMPLETING, config))
    assert entry.config is not None, entry.reason
    assert entry.config.inputs == (TensorSpec("X", "INT8", (7,)),)
    assert entry.config.dynamic_batching == DynamicBatching(preferred_batch_size=(8,))
    assert entry.config.max_batch_size == 16


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise RuntimeError('no net')", "model.py: auto_complete_config failed: RuntimeError: no net"),
        ("return None", "auto_complete_config returned NoneType, not the ModelConfig"),
        ("c.add_input({'name': 'X'})", "ValueError: input 'X' lacks 'data_type'"),
        ("c.add_input({'name': 'X', 'data_type': 'T', 'dims': [1]}); return c", "Invalid enum value T"),
        ("c.set_model_transaction_policy({'decoupled': True}); return c", "decoupled models are not served"),
        ("import os; os._exit(3)", "exit code 3, while it loaded"),
    ],
)
def test_a_completion_that_fails_is_a_reason_in_one_line(tmp_path: Path, body: str, message: str) -> None:
    code = f"""
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(c):
                {body}
    """
    entry = read_model(write(tmp_path / "m", code))
    assert entry.config is None
    assert entry.reason.startswith("m/config.pbtxt: ")
    assert message in entry.reason
    assert "\n" not in entry.reason


def test_no_process_is_started_for_a_model_that_completes_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("subprocess.Popen", None)
    code = "class TritonPythonModel:\n    def execute(self, requests): pass\n"
    entry = read_model(write(tmp_path / "m", code))
    assert entry.config is not None, entry.reason
    assert entry.config.outputs == ()
