"""CONTRIBUTING.md and SECURITY.md name commands, folders and settings that exist."""

import re
from pathlib import Path

import pytest

from headrace.config.settings import HeadraceSettings
from transport.settings import BrokerSettings

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
SECURITY = (ROOT / "SECURITY.md").read_text()


def test_its_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = re.findall(r"(?:^\$ |`)make ([a-z -]+)", CONTRIBUTING, re.MULTILINE)
    named = {word for line in lines for word in line.split()}
    assert len(named) > 5
    assert named <= targets


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:tests|contract|docs)/[\w./]*)`", CONTRIBUTING))))
def test_its_folders_and_files_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_settings_of_the_security_page_exist_and_are_as_safe_as_it_says() -> None:
    defaults = HeadraceSettings()
    keys = set(re.findall(r"`(gateway|worker|broker)\.(\w+)`", SECURITY))
    assert len(keys) > 5
    for part, key in keys:
        assert hasattr(BrokerSettings() if part == "broker" else getattr(defaults, part), key), f"{part}.{key}"
    assert defaults.gateway.host == "127.0.0.1"
    assert defaults.worker.allow_model_upload is False
