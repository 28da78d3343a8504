import re
import tomllib
from pathlib import Path

import pytest

from headrace import extras

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
DECLARED = PYPROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", extras.EXTRAS)
def test_every_package_of_an_extra_is_known(extra: str) -> None:
    names = {re.split(r"[><=;]", line)[0] for line in DECLARED[extra] if not line.startswith("headrace")}
    assert set(extras.EXTRAS[extra].values()) == names


def test_nothing_is_missing_here() -> None:
    assert extras.complaint(*extras.EXTRAS) == ""


def test_what_is_missing_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in {"uvicorn", "psutil"} else object())
    assert extras.complaint("gateway", "worker", "demo") == (
        "not installed: uvicorn, psutil; pip install 'headrace[gateway,worker]'"
    )
