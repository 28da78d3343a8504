"""The compiled form is what `make test-compiled` says that it tests."""

from __future__ import annotations

import os
import runpy
from importlib import import_module
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "setup.py"


@pytest.mark.skipif(os.environ.get("EXPECT_COMPILED") != "1", reason="the interpreted form is under test")
def test_every_module_of_the_hot_path_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_COMPILE", raising=False)
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    names = [path.removesuffix(".py").replace("/", ".") for path in runpy.run_path(str(SETUP))["COMPILED"]]
    interpreted = [name for name in names if not str(import_module(name).__file__).endswith(".so")]
    assert names
    assert interpreted == []
