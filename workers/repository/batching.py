"""`dynamic_batching` of a config to our DynamicBatching. Pure; refuses what Triton refuses, in the field's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contract.model_config import DynamicBatching, QueuePolicy
from workers.repository.refusal import ConfigRefused


def to_dynamic_batching(batching: Mapping[str, Any] | None, max_batch_size: int) -> DynamicBatching | None:
    """None where the config has no `dynamic_batching`.

    Raises:
        ConfigRefused: a value out of its range; names it and the range.
    """
    if batching is None:
        return None
    found = DynamicBatching(
        preferred_batch_size=tuple(sorted(int(n) for n in batching.get("preferred_batch_size", ()))),
        max_queue_delay_us=int(batching.get("max_queue_delay_microseconds", 0)),
        preserve_ordering=bool(batching.get("preserve_ordering", False)),
        priority_levels=int(batching.get("priority_levels", 0)),
        default_priority_level=int(batching.get("default_priority_level", 0)),
        default_queue_policy=_policy(batching.get("default_queue_policy", {})),
        priority_queue_policy={
            int(level): _policy(policy) for level, policy in batching.get("priority_queue_policy", {}).items()
        },
    )
    _check_sizes(found, max_batch_size)
    _check_levels(found)
    _check_ordering(found)
    return found


def _policy(policy: Mapping[str, Any]) -> QueuePolicy:
    action = policy.get("timeout_action", "REJECT")
    if action not in ("REJECT", "DELAY"):
        raise ConfigRefused(f"dynamic_batching: timeout_action = {action}, it must be REJECT or DELAY")
    return QueuePolicy(
        timeout_action=action,
        default_timeout_us=int(policy.get("default_timeout_microseconds", 0)),
        allow_timeout_override=bool(policy.get("allow_timeout_override", False)),
        max_queue_size=int(policy.get("max_queue_size", 0)),
    )


def _check_sizes(batching: DynamicBatching, max_batch_size: int) -> None:
    for size in batching.preferred_batch_size:
        if not 0 < size <= max_batch_size:
            raise ConfigRefused(
                f"dynamic_batching.preferred_batch_size has {size}, it must be 1 to max_batch_size = {max_batch_size}"
            )


def _check_levels(batching: DynamicBatching) -> None:
    levels, default = batching.priority_levels, batching.default_priority_level
    if levels and not 0 < default <= levels:
        raise ConfigRefused(
            f"dynamic_batching.default_priority_level = {default}, it must be 1 to priority_levels = {levels}"
        )
    if default and not levels:
        raise ConfigRefused(f"dynamic_batching.default_priority_level = {default}, but priority_levels is not set")
    for level in batching.priority_queue_policy:
        if not 0 < level <= levels:
            raise ConfigRefused(
                f"dynamic_batching.priority_queue_policy has level {level}, it must be 1 to priority_levels = {levels}"
            )


def _check_ordering(batching: DynamicBatching) -> None:
    if not batching.preserve_ordering:
        return
    if batching.priority_levels > 1:
        raise ConfigRefused(
            f"dynamic_batching: preserve_ordering goes with one priority level, there are {batching.priority_levels}"
        )
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        if policy.timeout_action == "DELAY" and policy.default_timeout_us:
            raise ConfigRefused("dynamic_batching: preserve_ordering does not go with timeout_action = DELAY")
