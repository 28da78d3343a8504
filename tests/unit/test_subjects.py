"""Subjects: their exact spelling, which is what other processes and tenants' permissions rely on."""

import pytest

from contract import subjects
from contract.errors import InvalidInput
from contract.subjects import DoorAddress, LaneAddress


def test_a_lane_is_spelt_as_the_contract_says() -> None:
    lane = LaneAddress("default", "Qwen2.5-0.5B", "any", "norm")
    assert lane.subject == "q.0.default.Qwen2=2E5-0=2E5B.any.norm"
    assert lane.stream == "HR_ON_default_0"
    assert lane.consumer == "Qwen2=2E5-0=2E5B+any+norm"


def test_a_door_subject_parses_back_to_the_names_it_was_built_from() -> None:
    address = DoorAddress("acme corp", "com.example.moderation", "tox*>icity")
    assert subjects.parse_infer(address.subject) == address


@pytest.mark.parametrize(
    "subject", ["infer.a.b", "infer.a.b.c.d", "generate.a.b.c", "infer.a.=2.c", "infer.a.=6A.c", "infer..b.c"]
)
def test_a_door_subject_of_another_form_is_refused(subject: str) -> None:
    with pytest.raises(InvalidInput):
        subjects.parse_infer(subject)


@pytest.mark.parametrize("name", ["", "   ", "a\nb", "a\x00", "\x85", "x" * 129, "é" * 65, "\ud800"])
def test_only_empty_long_and_control_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="model"):
        subjects.check_name(name, "model")


@pytest.mark.parametrize("name", ["a.b", "*", ">", "日本", "x" * 128, "a/b", "a b", "=41", "$JS.API"])
def test_every_other_name_is_taken(name: str) -> None:
    assert subjects.check_name(name) == name


def test_only_the_default_tenant_may_use_any_inbox() -> None:
    assert subjects.tenant_inbox("default") == "_INBOX."
    assert subjects.tenant_inbox("a.b") == "_INBOX.a=2Eb."
