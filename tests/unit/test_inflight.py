from contract.errors import Cancelled, DeadlineExceeded, ModelFailed
from contract.principal import DEFAULT_PRINCIPAL
from contract.subjects import LaneAddress
from gateway.admission import Admission, Ticket
from gateway.coalescer import LaneQueue, ModelWatch
from gateway.core import Answer, Outcome, Target
from gateway.inflight import Entry, Inflight
from tests.support.gateway_kit import card, infer_request


class Table:
    """An in-flight table and what its callers heard."""

    def __init__(self) -> None:
        self.admission = Admission(1000, 1_000_000)
        self.ended: list[tuple[int, bool]] = []
        self.table = Inflight(lambda entry, is_settled: self.ended.append((entry.id, is_settled)))
        target = Target("default", "default", card(), "")
        self.lane = LaneQueue(LaneAddress("default", "tiny", "any", "norm"), target, ModelWatch("default", "tiny"))
        self.heard: dict[int, list[Outcome]] = {}

    def add(self, deadline_s: float, now_s: float = 0.0) -> Entry:
        ticket = self.admission.admit(DEFAULT_PRINCIPAL, 16, deadline_s, now_s)
        assert isinstance(ticket, Ticket)
        outcomes: list[Outcome] = []
        request = infer_request(deadline_s=deadline_s)
        entry = self.table.add(self.lane, request, outcomes.append, ticket, body_bytes=16, now_s=now_s)
        self.heard[entry.id] = outcomes
        return entry


def test_a_deadline_is_met_never_early_and_at_most_two_buckets_late() -> None:
    t = Table()
    entry = t.add(deadline_s=1.0)
    t.table.sweep(0.9999)
    assert t.heard[entry.id] == []
    t.table.sweep(1.0051)
    assert [type(o) for o in t.heard[entry.id]] == [DeadlineExceeded]


def test_only_what_is_due_ends() -> None:
    t = Table()
    entries = [t.add(deadline_s=0.1 * n) for n in range(1, 11)]
    assert t.table.sweep(0.55) == 5
    assert [bool(t.heard[e.id]) for e in entries] == [True] * 5 + [False] * 5
    assert t.table.sweep(100.0) == 5
    assert len(t.table) == 0
    assert t.admission.num_in_flight == 0


def test_a_long_sleep_of_the_process_ends_everything_due_at_once() -> None:
    t = Table()
    t.add(deadline_s=5.0)
    t.add(deadline_s=10.0, now_s=1.0)
    assert t.table.sweep(1e6) == 2
    late = t.add(deadline_s=1e6 + 1, now_s=1e6)
    assert t.table.sweep(1e6 + 0.9) == 0
    assert t.table.sweep(1e6 + 1.01) == 1
    assert len(t.heard[late.id]) == 1


def test_a_deadline_in_a_bucket_already_swept_is_met_by_the_next_sweep() -> None:
    t = Table()
    t.add(deadline_s=50.0)
    t.table.sweep(10.0)
    entry = t.add(deadline_s=10.001, now_s=10.0)
    t.table.sweep(10.005)
    assert len(t.heard[entry.id]) == 1


def test_the_first_end_wins() -> None:
    t = Table()
    entry = t.add(deadline_s=1.0)
    assert t.table.end(entry, ModelFailed("first"), is_settled=True)
    assert not t.table.end(entry, ModelFailed("second"))
    entry.cancel()
    t.table.sweep(2.0)
    assert [o.message for o in t.heard[entry.id]] == ["first"]
    assert t.ended == [(entry.id, True)]
    assert t.table.get(entry.id) is None
    assert t.table.num_late_answers == 1


def test_a_cancelled_caller_hears_so_at_once() -> None:
    t = Table()
    entry = t.add(deadline_s=1.0)
    entry.cancel()
    assert [type(o) for o in t.heard[entry.id]] == [Cancelled]
    assert t.ended == [(entry.id, False)]
    assert t.lane.watch.num_open == 0


def test_a_caller_that_raises_does_not_disturb_the_others() -> None:
    t = Table()
    bad, good = t.add(deadline_s=1.0), t.add(deadline_s=1.0)

    def raises(_outcome: Outcome) -> None:
        raise ZeroDivisionError

    bad.done = raises
    assert t.table.sweep(2.0) == 2
    assert len(t.heard[good.id]) == 1


def test_a_caller_may_cancel_its_neighbours_while_it_hears() -> None:
    t = Table()
    first, second = t.add(deadline_s=1.0), t.add(deadline_s=1.0)
    first.done = lambda _outcome: second.cancel()
    assert t.table.sweep(2.0) == 1
    assert [type(o) for o in t.heard[second.id]] == [Cancelled]


def test_nothing_is_kept_of_what_ended() -> None:
    t = Table()
    for _ in range(100):
        t.table.end(t.add(deadline_s=30.0), ModelFailed("x"))
    assert len(t.table._buckets) == 0
    assert t.table.num_failed == {"model-failed": 100}


def test_usage_counts_first_answers_only_with_their_share_of_the_execution() -> None:
    t = Table()
    entry, failed = t.add(deadline_s=1.0), t.add(deadline_s=1.0)
    answer = Answer("tiny", "1", (), [], {}, 5, 400, 4 * entry.request.rows)
    assert t.table.end(entry, answer)
    assert not t.table.end(entry, answer)
    t.table.end(failed, ModelFailed("no"))
    principal = entry.request.principal
    assert t.table.take_usage() == {(principal.tenant, principal.key_id, "tiny"): [1, entry.request.rows, 16, 100]}
    assert t.table.take_usage() == {}
