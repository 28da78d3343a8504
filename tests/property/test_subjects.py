"""No name, however spelt, can address another subject: the encoding is reversible and holds no special character."""

import re

from hypothesis import given
from hypothesis import strategies as st

from contract.client_permissions import client_permissions
from contract.errors import InvalidInput
from contract.subjects import LANES, DoorAddress, LaneAddress, check_name, decode_token, encode_token

SAFE = re.compile(r"[A-Za-z0-9_=-]+\Z")
NAMES = st.text(min_size=1, max_size=40)


def _is_legal(name: str) -> bool:
    try:
        check_name(name)
    except InvalidInput:
        return False
    return True


LEGAL = NAMES.filter(_is_legal)


@given(LEGAL)
def test_a_name_comes_back_from_its_token(name: str) -> None:
    token = encode_token(name)
    assert SAFE.match(token)
    assert decode_token(token) == name


@given(st.lists(LEGAL, min_size=2, max_size=2, unique=True))
def test_two_names_never_share_a_token(names: list[str]) -> None:
    assert encode_token(names[0]) != encode_token(names[1])


@given(st.text(alphabet="=0123456789ABCDEFabcdefxyz.*> ", max_size=20))
def test_a_token_decodes_to_the_name_that_encodes_to_it_or_not_at_all(token: str) -> None:
    try:
        name = decode_token(token)
    except InvalidInput:
        return
    assert encode_token(name) == token


@given(LEGAL, LEGAL, st.sampled_from(["any", "1", "42"]), st.sampled_from(LANES))
def test_a_lane_subject_has_exactly_six_tokens(group: str, model: str, version: str, lane: str) -> None:
    address = LaneAddress(group, model, version, lane)  # type: ignore[arg-type]
    assert len(address.subject.split(".")) == 6
    assert not re.search(r"[\s.*>/\\]", address.stream + address.consumer)


@given(LEGAL, LEGAL, LEGAL, LEGAL)
def test_no_tenant_may_publish_on_anothers_subjects(tenant: str, other: str, service: str, model: str) -> None:
    allowed = [pattern.removesuffix(">") for side in client_permissions(tenant) for pattern in side]
    assert all(part.endswith(".") and not set(part) & set("*> \r\n") for part in allowed)
    theirs = DoorAddress(other, service, model).subject
    assert any(theirs.startswith(part) for part in allowed) == (tenant == other)
