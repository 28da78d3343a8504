"""Every package that is used has a licence that lets anybody use, change and sell what is made with it."""

from email.message import Message
from importlib.metadata import Distribution
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tools import third_party
from tools.third_party import LicenceProblem, checked_licence, is_allowed, read_lock, stated_licence


def package(**metadata: str) -> Distribution:
    message = Message()
    for name, value in metadata.items():
        for line in value.split("|"):
            message[name.replace("_", "-")] = line
    return cast("Distribution", SimpleNamespace(metadata=message))


def test_the_page_is_what_locks_and_metadata_say() -> None:
    if not all(environment.exists() for environment in third_party.ENVIRONMENTS):
        pytest.skip("needs .venv and .venv-models")
    assert third_party.PAGE.read_text() == third_party.page(), "run: make third-party"


@pytest.mark.parametrize(
    "expression",
    ["MIT", "Apache-2.0 AND MIT", "MIT OR GPL-3.0-only", "MPL-2.0 AND (GPL-2.0-only OR MIT)", "(MIT)"],
)
def test_an_expression_that_leaves_an_allowed_way_passes(expression: str) -> None:
    assert is_allowed(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "GPL-3.0-only",
        "MIT AND CC-BY-NC-4.0",
        "MIT AND",
        "(MIT",
        "MIT MIT",
        "Proprietary",
        "MIT WITH x",
        "no licence",
    ],
)
def test_an_expression_that_leaves_none_does_not(expression: str) -> None:
    assert not is_allowed(expression)


def test_the_expression_wins_then_a_known_text_then_classifiers() -> None:
    osi = "License :: OSI Approved :: "
    assert stated_licence(package(License_Expression="ISC", License="MIT")) == "ISC"
    assert stated_licence(package(License="3-Clause BSD License", Classifier=f"{osi}BSD License")) == "BSD-3-Clause"
    both = package(Classifier=f"{osi}MIT License|{osi}Apache Software License|Topic :: Internet")
    assert stated_licence(both) == "Apache-2.0 OR MIT"


def test_an_unknown_and_a_non_commercial_licence_are_refused_by_name() -> None:
    for text in ("CC BY-NC 4.0", "Free for research\nand nothing else", ""):
        with pytest.raises(LicenceProblem, match=r"^odd states "):
            checked_licence("odd", {"odd": package(License=text)})
    with pytest.raises(LicenceProblem, match="odd is not installed here"):
        checked_licence("odd", {})


def test_a_package_for_other_platforms_is_left_out() -> None:
    lock = "a==1  # via b\nwin==2 ; sys_platform == 'win32'  # via a\nold==3 ; python_full_version < '3.12'\n"
    assert list(read_lock(lock)) == [("a", "1"), ("old", "3")]
    assert list(read_lock("Data==4 --hash=sha256:00")) == [("data", "4")]


def test_every_problem_is_told_at_once_and_the_page_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(third_party, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(third_party, "installed_packages", dict)
    assert third_party.main() == 1
    told = capsys.readouterr().err
    assert "uvloop is not installed" in told
    assert "numpy is not installed" in told
    assert not (tmp_path / "page.md").exists()
