"""docs/model_config.md against the code: every field and parameter is there with its default, and no other."""

import re
from pathlib import Path

from workers.backends import ort_options
from workers.cost import PaddingCost
from workers.repository.honoured import HONOURED
from workers.repository.parameters import DEFAULT_MAX_EXECUTION_S, MAX_EXECUTION_S, OWN_PARAMETERS

PAGE = (Path(__file__).parents[2] / "docs/model_config.md").read_text()


def table(heading: str) -> list[list[str]]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][1:]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def covers(written: str, path: str) -> bool:
    return path == written or (written.endswith(".*") and path.startswith(written.removesuffix("*")))


def test_every_honoured_field_is_on_the_page() -> None:
    written = [name for row in table("Fields that are honoured") for name in names(row[0])]
    assert [path for path in sorted(HONOURED) if not any(covers(w, path) for w in written)] == []


def test_no_field_is_on_the_page_that_is_not_honoured() -> None:
    rows = table("Fields that are honoured")
    written = [name for row in rows if not row[0].startswith("…") for name in names(row[0])]
    written = [name.replace(".*.*", ".*") for name in written]
    assert [w for w in written if not any(covers(w, path) for path in HONOURED)] == []
    policies = [f"dynamic_batching.default_queue_policy.{names(row[0])[0]}" for row in rows if row[0].startswith("…")]
    assert set(policies) == {path for path in HONOURED if path.startswith("dynamic_batching.default_queue_policy.")}


def test_headraces_own_parameters_are_all_there_with_their_defaults() -> None:
    rows = {names(row[0])[0]: row for row in table("Headrace's own parameters")}
    assert set(rows) == set(OWN_PARAMETERS)
    cost = PaddingCost()
    assert float(rows["max_execution_s"][1]) == DEFAULT_MAX_EXECUTION_S
    assert rows["max_execution_s"][2] == f"above 0 to {MAX_EXECUTION_S:.0f}"
    assert float(rows["base_tokens"][1]) == cost.base_tokens
    assert int(rows["max_padded_tokens"][1]) == cost.max_padded_tokens


def test_every_parameter_of_onnx_runtime_is_there() -> None:
    written = [name for row in table("Parameters of the ONNX Runtime backend") for name in names(row[0])]
    assert sorted(written) == sorted(ort_options.PARAMETERS)
