"""LoRA adapters of a replica: slots in its GPU memory for those whose requests run, filled from host memory.

A request runs while its adapter has a slot. One whose adapter has none waits, and those behind it go first. A step
waits for the adapters that it loads; the least recently used one that no running request needs makes room.
Source: vllm-project/vllm, `vllm/v1/core/sched/scheduler.py` (requests beyond `max_loras` are skipped and stay in
front) and `vllm/lora/model_manager.py` (least recently used).
"""

from collections.abc import Iterable

from backends.serving.batch import Sequence


class Adapters:
    """`slots` adapters at a time; loading one takes `load_s`, and a step with any the share `step_share` more."""

    __slots__ = ("load_s", "loads", "resident", "slots", "step_share")

    def __init__(self, slots: int, load_s: float = 0.0, step_share: float = 0.0) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        self.slots = slots
        self.load_s = load_s
        self.step_share = step_share
        self.loads = 0
        self.resident: dict[str, None] = {}  # the least recently used first

    def without_slot(self, waiting: Iterable[Sequence], running: Iterable[Sequence]) -> list[Sequence]:
        """Those that wait and would exceed the slots beside the running ones and those in front of them."""
        used = {seq.adapter for seq in running} - {None}
        late = []
        for seq in waiting:
            if seq.adapter is None or seq.adapter in used:
                continue
            if len(used) < self.slots:
                used.add(seq.adapter)
            else:
                late.append(seq)
        return late

    def load(self, running: Iterable[Sequence]) -> tuple[float, float]:
        """Give the running sequences their adapters. Returns the seconds of loading, and the factor of its time."""
        used = dict.fromkeys(seq.adapter for seq in running if seq.adapter is not None)
        assert len(used) <= self.slots
        new = [name for name in used if name not in self.resident]
        idle = [name for name in self.resident if name not in used]
        for name in idle[: max(0, len(self.resident) + len(new) - self.slots)]:
            del self.resident[name]
        for name in used:
            self.resident.pop(name, None)
            self.resident[name] = None
        self.loads += len(new)
        return len(new) * self.load_s, 1.0 + self.step_share if used else 1.0

    def __repr__(self) -> str:
        return f"<Adapters {len(self.resident)}/{self.slots} slots, {self.loads} loads>"
