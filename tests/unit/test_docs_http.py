"""docs/http.md lists the routes that are there, and no other."""

import re
from pathlib import Path

from gateway.http.operations import OPERATIONS

PAGE = (Path(__file__).parents[2] / "docs/http.md").read_text()
TWIN = "/versions/{version}"


def test_every_route_is_in_the_table_and_no_other() -> None:
    rows = re.findall(r"^\| ([A-Z, ]+) \| (`.+?) \| ", PAGE, re.MULTILINE)
    listed = {
        (m, path) for methods, cell in rows for m in methods.split(", ") for path in re.findall(r"`(\S+?)`", cell)
    }
    assert listed == {(o.method, o.path.replace(TWIN, "")) for o in OPERATIONS if o.tag != "absent"}


def test_every_route_of_a_model_has_its_twin_with_a_version() -> None:
    paths = {operation.path for operation in OPERATIONS}
    base = "/v2/models/{model}"
    for path in paths:
        if path.startswith(base) and TWIN not in path and "trace" not in path:
            assert path.replace(base, base + TWIN) in paths


def test_every_absent_extension_is_named() -> None:
    named = PAGE.partition("## What is not here")[2].lower()
    for word in ("shared memory", "system", "cuda", "trace", "log", "generate"):
        assert word in named
