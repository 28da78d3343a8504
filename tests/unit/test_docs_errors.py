import re
from pathlib import Path

import pytest

from contract import envelope
from contract.errors import HeadraceError, all_errors

PAGE = (Path(__file__).parents[2] / "docs/errors.md").read_text()
ERRORS = all_errors()


def section(code: str) -> str:
    found = re.search(rf"^### {re.escape(code)}\n(.*?)(?=^### |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def test_the_envelope_error_is_among_them() -> None:
    assert envelope.BadEnvelope in ERRORS


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.code)
def test_every_code_has_its_row_with_status_and_retry(error: type[HeadraceError]) -> None:
    retry = "yes" if error.is_retryable else "no"
    assert f"| [`{error.code}`](#{error.code}) | {error.http_status} | {error.grpc_status} | {retry} |\n" in PAGE


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.code)
def test_every_code_says_what_it_means_why_and_what_to_do(error: type[HeadraceError]) -> None:
    text = section(error.code)
    for part in ("**Meaning**: ", "**Cause**: ", "**What to do**: "):
        assert len(text.partition(part)[2].split("\n")[0]) > 10, part


def test_no_code_is_explained_that_does_not_exist() -> None:
    assert set(re.findall(r"^### (\S+)$", PAGE, re.MULTILINE)) == {e.code for e in ERRORS}
