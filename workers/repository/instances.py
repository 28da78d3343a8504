"""The instances that a model version is to be loaded as, one source each. Pure; loads nothing."""

from __future__ import annotations

from collections.abc import Iterator

from workers.backends.base import InstanceSource
from workers.repository.scan import ModelEntry


def instance_sources(entry: ModelEntry, version: str, intra_op_threads: int = 1) -> Iterator[InstanceSource]:
    """`count` instances per group, on each of its GPUs where it has some; numbered through the whole model."""
    assert entry.config is not None, entry.reason
    index = 0
    for group in entry.config.instance_groups:
        devices = group.gpus or (None,)
        for device_id in devices:
            for _ in range(group.count):
                yield InstanceSource(
                    config=entry.config,
                    version=version,
                    model_dir=entry.model_dir,
                    group=group,
                    index=index,
                    device_id=device_id,
                    intra_op_threads=intra_op_threads,
                    triton_config=entry.triton_config,
                )
                index += 1
