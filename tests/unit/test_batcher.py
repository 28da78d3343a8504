import msgspec
import numpy as np
import pytest

from contract.errors import DeadlineExceeded, InvalidInput, QueueFull, QueueTimeout
from contract.model_config import DynamicBatching, QueuePolicy, TensorSpec
from tests.support.batcher_kit import bare_text, ids, make_config, make_item, make_ragged_config, make_text, queue
from workers.batcher import Batcher


def offer_all(batcher: Batcher, items, now_s: float = 0.0) -> None:
    for item in items:
        assert batcher.offer(item, now_s) is None


def taken(batcher: Batcher, now_s: float = 0.0, num_idle: int = 1) -> list[int]:
    batch = batcher.take(now_s, num_idle)
    return ids(batch.items) if batch else []


def test_everything_that_waits_runs_together_in_order_of_arrival():
    batcher = Batcher(make_config())
    offer_all(batcher, [make_item(n) for n in range(5)])
    batch = batcher.take(0.0)
    assert batch is not None
    assert ids(batch.items) == [0, 1, 2, 3, 4]
    assert batch.rows == 5
    assert batcher.num_pending == 0


def test_rows_are_counted_not_requests():
    batcher = Batcher(make_config(8))
    offer_all(batcher, [make_item(n, rows=3) for n in range(4)])
    assert taken(batcher) == [0, 1]
    assert taken(batcher) == [2, 3]


def test_a_request_with_more_rows_than_max_batch_size_is_refused():
    assert isinstance(Batcher(make_config(8)).offer(make_item(1, rows=9), 0.0), InvalidInput)


@pytest.mark.parametrize(
    "config",
    [make_config(8, None), make_config(1), make_config(0), make_config(8, may_retry=False)],
    ids=["no dynamic batching", "max_batch_size 1", "no batch dimension", "retry: never"],
)
def test_requests_that_may_not_be_joined_run_one_at_a_time_in_order(config):
    batcher = Batcher(config)
    offer_all(batcher, [make_item(n) for n in range(3)])
    assert [taken(batcher) for _ in range(4)] == [[0], [1], [2], []]


def test_nothing_is_taken_while_no_instance_is_idle():
    batcher = Batcher(make_config())
    offer_all(batcher, [make_item(0)])
    assert taken(batcher, num_idle=0) == []
    assert batcher.num_pending == 1


def test_two_idle_instances_share_what_waits():
    batcher = Batcher(make_config())
    offer_all(batcher, [make_item(n) for n in range(5)])
    assert taken(batcher, num_idle=2) == [0, 1, 2]
    assert taken(batcher, num_idle=1) == [3, 4]


class TestJoining:
    def test_unlike_shapes_are_never_joined_and_the_oldest_goes_first(self):
        config = make_config(inputs=(TensorSpec("IN", "FP32", (-1,)),))
        batcher = Batcher(config)
        narrow, wide = np.zeros((1, 2), np.float32), np.zeros((1, 3), np.float32)
        offer_all(batcher, [make_item(n, {"IN": wide if n % 2 else narrow}) for n in range(5)])
        assert taken(batcher) == [0, 2, 4]
        assert taken(batcher) == [1, 3]

    def test_requests_with_and_without_an_optional_input_are_not_joined(self):
        batcher = Batcher(make_config())
        one = np.zeros((1, 2), np.float32)
        offer_all(batcher, [make_item(0, {"IN": one}), make_item(1, {"IN": one, "MORE": one}), make_item(2)])
        assert taken(batcher) == [0, 2]
        assert taken(batcher) == [1]

    def test_unlike_datatypes_are_not_joined(self):
        batcher = Batcher(make_config())
        offer_all(batcher, [make_item(0), make_item(1, {"IN": np.zeros((1, 2), np.int32)})])
        assert taken(batcher) == [0]

    def test_requests_for_other_outputs_or_versions_are_not_joined(self):
        batcher = Batcher(make_config())
        offer_all(batcher, [make_item(0), make_item(1, outputs=("OUT",)), make_item(2, version="2"), make_item(3)])
        assert [taken(batcher) for _ in range(3)] == [[0, 3], [1], [2]]

    def test_a_request_that_must_run_alone_shares_with_nobody_even_of_its_kind(self):
        batcher = Batcher(make_config())
        offer_all(batcher, [make_item(n, must_run_alone=n in (1, 2)) for n in range(4)])
        assert [taken(batcher) for _ in range(3)] == [[0, 3], [1], [2]]

    def test_requests_of_one_message_are_looked_at_once(self):
        batcher = Batcher(make_config())
        first = make_item(0)
        second = make_item(1)
        second.layout = first.layout
        offer_all(batcher, [first, second])
        assert first.batch_key is second.batch_key


class TestPreferredSizesAndDelay:
    def test_a_preferred_size_is_taken_without_waiting(self):
        batcher = Batcher(make_config(8, DynamicBatching(preferred_batch_size=(2, 4), max_queue_delay_us=10_000)))
        offer_all(batcher, [make_item(n) for n in range(3)])
        assert taken(batcher) == [0, 1]

    def test_the_largest_preferred_size_that_is_there_wins(self):
        batcher = Batcher(make_config(8, DynamicBatching(preferred_batch_size=(2, 4))))
        offer_all(batcher, [make_item(n) for n in range(5)])
        assert taken(batcher) == [0, 1, 2, 3]
        assert taken(batcher) == [4]

    def test_rows_that_step_over_every_preferred_size_run_once_they_reach_the_largest(self):
        batcher = Batcher(make_config(8, DynamicBatching(preferred_batch_size=(4,), max_queue_delay_us=10_000)))
        offer_all(batcher, [make_item(0, rows=3)])
        assert taken(batcher) == []
        offer_all(batcher, [make_item(1, rows=3)])
        assert taken(batcher) == [0, 1]

    def test_the_delay_counts_from_the_oldest_arrival(self):
        batcher = Batcher(make_config(8, DynamicBatching(max_queue_delay_us=10_000)))
        offer_all(batcher, [make_item(0, enqueued_s=1.0)], 1.0)
        assert taken(batcher, 1.0) == []
        assert batcher.next_event_s(1.0) == pytest.approx(1.010)
        offer_all(batcher, [make_item(1, enqueued_s=1.008)], 1.008)
        assert taken(batcher, 1.0099) == []
        assert taken(batcher, batcher.next_event_s(1.0099)) == [0, 1]

    def test_a_full_micro_batch_does_not_wait_for_the_delay(self):
        batcher = Batcher(make_config(4, DynamicBatching(max_queue_delay_us=10_000)))
        offer_all(batcher, [make_item(n) for n in range(4)])
        assert taken(batcher) == [0, 1, 2, 3]

    def test_rows_that_do_not_fit_any_more_end_the_wait(self):
        batcher = Batcher(make_config(4, DynamicBatching(max_queue_delay_us=10_000)))
        offer_all(batcher, [make_item(0, rows=3), make_item(1, rows=3)])
        assert taken(batcher) == [0]
        assert taken(batcher) == []

    def test_instances_do_not_share_rows_that_the_operator_wants_gathered(self):
        batcher = Batcher(make_config(8, DynamicBatching(preferred_batch_size=(4,))))
        offer_all(batcher, [make_item(n) for n in range(4)])
        assert taken(batcher, num_idle=2) == [0, 1, 2, 3]

    def test_a_delay_that_ended_while_the_model_was_busy_does_not_spin_the_loop(self):
        batcher = Batcher(make_config(8, DynamicBatching(max_queue_delay_us=10_000)))
        offer_all(batcher, [make_item(0, deadline_s=5.0)])
        assert batcher.next_event_s(0.5) == 5.0


class TestPriorities:
    config = make_config(4, DynamicBatching(priority_levels=3, default_priority_level=2))

    def test_a_higher_priority_goes_first_and_lower_ones_fill_up(self):
        batcher = Batcher(self.config)
        offer_all(batcher, [make_item(n, priority=p) for n, p in enumerate([3, 2, 1, 2, 1])])
        assert taken(batcher) == [2, 4, 1, 3]
        assert taken(batcher) == [0]

    def test_no_priority_and_one_beyond_the_levels_are_the_default(self):
        batcher = Batcher(self.config)
        offer_all(batcher, [make_item(n, priority=p) for n, p in enumerate([3, 0, 9, 1])])
        assert taken(batcher) == [3, 1, 2, 0]

    def test_without_levels_a_priority_means_nothing(self):
        batcher = Batcher(make_config())
        offer_all(batcher, [make_item(0, priority=5), make_item(1, priority=1)])
        assert taken(batcher) == [0, 1]

    def test_each_level_has_its_own_queue_size(self):
        policies = {1: QueuePolicy(max_queue_size=1), 2: QueuePolicy(max_queue_size=2)}
        batcher = Batcher(
            make_config(4, DynamicBatching(priority_levels=2, default_priority_level=2, priority_queue_policy=policies))
        )
        outcomes = [batcher.offer(make_item(n, priority=p), 0.0) for n, p in enumerate([1, 1, 2, 2, 2])]
        assert [error is None for error in outcomes] == [True, False, True, True, False]
        assert "priority level 1" in outcomes[1].message

    def test_ragged_rows_of_a_lower_level_do_not_prolong_a_higher_ones_execution(self):
        batcher = Batcher(make_ragged_config(batching=self.config.dynamic_batching))
        offer_all(batcher, [bare_text(0, 8, priority=2), bare_text(1, 8, priority=1)])
        assert [taken(batcher), taken(batcher)] == [[1], [0]]


class TestTimeouts:
    def test_a_passed_deadline_is_refused_at_the_door(self):
        assert isinstance(Batcher(make_config()).offer(make_item(0, deadline_s=1.0), 1.0), DeadlineExceeded)

    def test_a_deadline_fires_while_the_model_is_busy(self):
        batcher = Batcher(make_config())
        offer_all(batcher, [make_item(0, deadline_s=9.0), make_item(1, deadline_s=2.0)])
        assert batcher.next_event_s(0.0) == 2.0
        assert batcher.expire(1.999) == []
        ((item, error),) = batcher.expire(2.0)
        assert (item.key[1], type(error)) == (1, DeadlineExceeded)
        assert batcher.num_pending == 1
        assert batcher.next_event_s(2.0) == 9.0

    def test_take_never_gives_an_expired_request_and_expire_then_tells_it(self):
        batcher = Batcher(make_config())
        offer_all(batcher, [make_item(0, deadline_s=2.0), make_item(1)])
        assert taken(batcher, 2.0) == [1]
        assert batcher.next_event_s(2.0) == 2.0
        assert [item.key[1] for item, _ in batcher.expire(2.0)] == [0]
        assert batcher.expire(2.0) == []
        assert batcher.next_event_s(2.0) is None

    def test_reject_ends_the_request_at_its_queue_timeout_counted_from_admission(self):
        batcher = Batcher(make_config(8, queue(default_timeout_us=50_000)))
        offer_all(batcher, [make_item(0, admitted_s=1.0, enqueued_s=1.01)], 1.01)
        assert batcher.next_event_s(1.01) == pytest.approx(1.05)
        ((_, error),) = batcher.expire(1.05)
        assert isinstance(error, QueueTimeout)
        assert "50000" in error.message

    def test_delay_moves_the_request_behind_the_others_and_it_still_has_its_deadline(self):
        batcher = Batcher(make_config(1, queue(default_timeout_us=50_000, timeout_action="DELAY", max_queue_size=3)))
        offer_all(batcher, [make_item(0, deadline_s=3.0)])
        offer_all(batcher, [make_item(1, enqueued_s=0.04)], 0.04)
        assert batcher.expire(0.05) == []
        assert batcher.num_pending == 2
        assert [taken(batcher, 0.06), taken(batcher, 0.06)] == [[1], [0]]

        offer_all(batcher, [make_item(2, deadline_s=3.0)], 1.0)
        assert batcher.expire(1.1) == []
        assert batcher.next_event_s(1.1) == 3.0
        assert [type(error) for _, error in batcher.expire(3.0)] == [DeadlineExceeded]

    def test_delayed_requests_run_in_order_of_arrival_whoever_was_delayed_first(self):
        policy = QueuePolicy(timeout_action="DELAY")
        batcher = Batcher(make_config(1, DynamicBatching(preserve_ordering=True, default_queue_policy=policy)))
        offer_all(batcher, [make_item(n, queue_timeout_us=50_000 - 10_000 * n) for n in range(4)])
        for now_s in (0.02, 0.03, 0.04, 0.05):
            assert batcher.expire(now_s) == []
        assert [taken(batcher, 0.06) for _ in range(4)] == [[0], [1], [2], [3]]

    def test_delayed_requests_count_against_the_queue_size(self):
        batcher = Batcher(make_config(1, queue(default_timeout_us=1000, timeout_action="DELAY", max_queue_size=1)))
        offer_all(batcher, [make_item(0)])
        assert batcher.expire(0.5) == []
        assert isinstance(batcher.offer(make_item(1), 0.5), QueueFull)

    @pytest.mark.parametrize(
        ("is_allowed", "default_us", "own_us", "end_s"),
        [
            (True, 50_000, 20_000, 0.02),
            (True, 50_000, 90_000, 0.05),
            (False, 50_000, 20_000, 0.05),
            (True, 0, 20_000, 0.02),
            (True, 50_000, 0, 0.05),
        ],
        ids=["shorter", "longer", "not allowed", "no default", "none"],
    )
    def test_a_requests_own_timeout_may_only_shorten(self, is_allowed, default_us, own_us, end_s):
        batcher = Batcher(make_config(8, queue(default_timeout_us=default_us, allow_timeout_override=is_allowed)))
        offer_all(batcher, [make_item(0, queue_timeout_us=own_us)])
        assert batcher.next_event_s(0.0) == pytest.approx(end_s)

    def test_alarms_of_requests_that_ran_do_not_pile_up(self):
        batcher = Batcher(make_config(1))
        for number in range(1000):
            offer_all(batcher, [make_item(number)])
            taken(batcher)
        assert len(batcher._alarms._heap) < 200


class TestPreservedOrder:
    def test_micro_batches_start_in_order_of_arrival_whatever_the_shapes(self):
        config = make_config(8, DynamicBatching(preserve_ordering=True), inputs=(TensorSpec("IN", "FP32", (-1,)),))
        batcher = Batcher(config)
        offer_all(batcher, [make_item(n, {"IN": np.zeros((1, w), np.float32)}) for n, w in enumerate([2, 2, 3, 2])])
        assert [taken(batcher) for _ in range(3)] == [[0, 1], [2], [3]]

    def test_a_request_that_runs_alone_keeps_its_place(self):
        batcher = Batcher(make_config(8, DynamicBatching(preserve_ordering=True)))
        offer_all(batcher, [make_item(n, must_run_alone=n == 1) for n in range(4)])
        assert [taken(batcher) for _ in range(3)] == [[0], [1], [2, 3]]

    def test_ragged_rows_are_joined_only_while_padding_pays(self):
        batcher = Batcher(make_ragged_config(batching=DynamicBatching(preserve_ordering=True)))
        offer_all(batcher, [bare_text(n, length) for n, length in enumerate([30, 32, 31, 250, 30, 30])])
        assert [taken(batcher) for _ in range(3)] == [[0, 1, 2], [3], [4, 5]]


class TestLeaving:
    def test_a_request_that_was_taken_may_come_back_once_more(self):
        batcher = Batcher(make_config())
        item = make_item(0, deadline_s=5.0)
        offer_all(batcher, [item])
        assert taken(batcher) == [0]
        item.must_run_alone = True
        offer_all(batcher, [item], 1.0)
        assert len(batcher.expire(6.0)) == 1
        assert batcher.num_pending == 0

    def test_a_cancelled_request_is_never_taken(self):
        batcher = Batcher(make_config())
        offer_all(batcher, [make_item(n) for n in range(3)])
        (item,) = batcher.cancel(("gw", 1), ("gw", 77))
        assert item.is_cancelled
        assert not item.is_waiting
        assert taken(batcher) == [0, 2]
        assert batcher.cancel(("gw", 0)) == []

    def test_every_copy_of_a_request_is_cancelled(self):
        batcher = Batcher(make_config())
        offer_all(batcher, [make_item(1), make_item(1)])
        assert len(batcher.cancel(("gw", 1))) == 2
        assert batcher.num_pending == 0

    def test_a_cancelled_request_makes_room_in_a_full_queue(self):
        batcher = Batcher(make_config(1, queue(max_queue_size=1)))
        offer_all(batcher, [make_item(0)])
        assert isinstance(batcher.offer(make_item(1), 0.0), QueueFull)
        batcher.cancel(("gw", 0))
        assert batcher.offer(make_item(1), 0.0) is None

    def test_a_request_over_its_deadline_holds_no_place_in_a_full_queue(self):
        batcher = Batcher(make_config(1, queue(max_queue_size=1)))
        offer_all(batcher, [make_item(0, deadline_s=1.0)])
        assert batcher.offer(make_item(1), 1.0) is None
        assert [item.key[1] for item, _ in batcher.expire(1.0)] == [0]

    def test_a_draining_worker_gets_everything_back_oldest_first(self):
        batcher = Batcher(make_config(4, DynamicBatching(priority_levels=2, default_priority_level=2)))
        offer_all(batcher, [make_item(n, priority=1 + n % 2) for n in range(4)])
        assert ids(batcher.hand_back()) == [0, 1, 2, 3]
        assert batcher.num_pending == 0
        assert batcher.next_event_s(0.0) is None

    def test_a_draining_worker_keeps_the_rest_of_a_message_it_has_begun(self):
        batcher = Batcher(make_config(4))
        begun, other = object(), object()
        items = [make_item(n) for n in range(4)]
        for item, delivery in zip(items, (begun, other, begun, other), strict=True):
            item.delivery = delivery
        offer_all(batcher, items)
        assert ids(batcher.hand_back({begun})) == [1, 3]
        assert taken(batcher) == [0, 2]


class TestRagged:
    def test_rows_of_about_the_oldests_length_run_together(self):
        batcher = Batcher(make_ragged_config())
        offer_all(batcher, [bare_text(n, length) for n, length in enumerate([30, 200, 31, 8, 32, 198])])
        assert sorted(taken(batcher)) == [0, 2, 4]
        assert sorted(taken(batcher)) == [1, 5]
        assert taken(batcher) == [3]

    def test_a_row_longer_than_the_token_cap_runs_alone(self):
        batcher = Batcher(make_ragged_config())
        offer_all(batcher, [bare_text(0, 900), bare_text(1, 900)])
        assert [taken(batcher), taken(batcher)] == [[0], [1]]

    def test_a_delay_gathers_until_the_token_cap(self):
        batcher = Batcher(make_ragged_config(batching=DynamicBatching(max_queue_delay_us=10_000)))
        offer_all(batcher, [make_text(n, 100) for n in range(5)])
        assert taken(batcher) == []
        offer_all(batcher, [make_text(5, 100)])
        assert len(taken(batcher)) == 5

    def test_two_idle_instances_share_the_tokens_that_wait(self):
        batcher = Batcher(make_ragged_config())
        offer_all(batcher, [bare_text(n, 10) for n in range(6)])
        assert len(taken(batcher, num_idle=2)) == 3

    def test_empty_texts_are_joined_too(self):
        batcher = Batcher(make_ragged_config())
        offer_all(batcher, [bare_text(n, 0) for n in range(3)])
        assert sorted(taken(batcher)) == [0, 1, 2]

    def test_a_model_may_set_its_own_token_cap(self):
        config = msgspec.structs.replace(make_ragged_config(), parameters={"max_padded_tokens": "20"})
        batcher = Batcher(config)
        offer_all(batcher, [bare_text(n, 10) for n in range(3)])
        assert len(taken(batcher)) == 2
