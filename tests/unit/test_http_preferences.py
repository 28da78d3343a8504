"""The `Prefer` header."""

import pytest

from gateway.http.preferences import Preferences, parse_preferences


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([], Preferences()),
        (["respond-async"], Preferences(True)),
        (["Respond-Async, wait=10"], Preferences(True, 10)),
        (["respond-async", "wait=10"], Preferences(True, 10)),
        (['wait = "7" ; strict, respond-async;x=y'], Preferences(True, 7)),
        (["wait=3, wait=9"], Preferences(False, 3)),
        (["return=minimal"], Preferences()),
        (["respond-async, wait=-1"], Preferences(True)),
        (["respond-async, wait=soon"], Preferences(True)),
        (["respond-async, wait=9999999999"], Preferences(True)),
        ([",,;=,respond-async;"], Preferences(True)),
        (["no-respond-async"], Preferences()),
    ],
)
def test_what_a_caller_would_like_is_read_and_the_rest_is_ignored(values: list[str], found: Preferences) -> None:
    assert parse_preferences(values) == found
