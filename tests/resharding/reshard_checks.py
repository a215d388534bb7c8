"""What the workers share: arrays of all processes, and a reshard that is compared, to the byte that is sent."""

from __future__ import annotations

import jax
import numpy as np

import jaxring

# By which processes see whether they mean the same, and how often they have meant it.
DIGEST_BYTES = 12
DEVICES = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))


def made(values, sharding):
    """The array, or in a process without a part of it what stands for it."""
    if not sharding.addressable_devices:
        return jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=sharding)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def least(shape, itemsize, source, target):
    """The bytes that no process can do without."""
    total = 0
    for process in {d.process_index for d in target.device_set}:
        needed = np.zeros(shape, bool)
        for sharding, mark in ((target, True), (source, False)):
            for device, index in sharding.devices_indices_map(shape).items():
                if device.process_index == process:
                    needed[index] = mark
        total += int(needed.sum()) * itemsize
    return total


def right(result, values, target):
    """Whether the array is this one, also in a program, which takes the layout of the first shard for that of all."""
    assert result.sharding == target
    assert (result.shape, result.dtype) == (values.shape, values.dtype)
    for shard in getattr(result, "addressable_shards", ()):
        assert shard.data.format.layout.major_to_minor == tuple(range(values.ndim))
        assert shard.data.sharding.memory_kind == target.memory_kind
        np.testing.assert_array_equal(np.asarray(shard.data), values[shard.index])


def kept(x, y):
    """The devices of this process on which ``y`` has the memory of ``x``."""
    where = {s.device: s.data.unsafe_buffer_pointer() for s in getattr(x, "addressable_shards", ())}
    ends = {s.device: s.data.unsafe_buffer_pointer() for s in getattr(y, "addressable_shards", ())}
    return {device for device in ends if where.get(device) == ends[device]}


def staying(shape, source, target):
    """The devices of this process whose shard is the same in both."""
    before, after = (sharding.addressable_devices_indices_map(shape) for sharding in (source, target))
    return {device for device, index in after.items() if before.get(device) == index}


def check(comm, leaves, round_bytes, may_alias=False):
    """Reshards a tree of (values, source, target) by all processes that have a part in it, and compares."""
    tree = [made(values, source) for values, source, _ in leaves]
    before = jaxring.counters()["sent_bytes"]
    targets = [target for _, _, target in leaves]
    results = jaxring.reshard(tree, targets, round_bytes=round_bytes, may_alias=may_alias)
    sent = np.array([jaxring.counters()["sent_bytes"] - before])
    total = int(comm.all_reduce(sent)[0])
    for x, result, (values, source, target) in zip(tree, results, leaves, strict=True):
        right(result, values, target)
        if values.nbytes:
            alike = kept(x, result)
            may_stay = staying(values.shape, source, target) if may_alias else set()
            # Of an array of which nothing leaves a process, what is small is copied all the same.
            assert alike == may_stay or (not alike and values.nbytes <= 4 << 20), (alike, may_stay)
    minimum = sum(least(values.shape, values.dtype.itemsize, *pair) for values, *pair in leaves)
    taking_part = {d.process_index for _, *pair in leaves for sharding in pair for d in sharding.device_set}
    agreement = DIGEST_BYTES * len(taking_part) * (len(taking_part) - 1) if minimum else 0
    assert total == minimum + agreement, (total, minimum, agreement)
    return minimum
