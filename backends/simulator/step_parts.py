"""The parts of logged steps, for columns of the `steps` table: computed when it is made, not while the run goes on."""

from collections.abc import Mapping, Sequence

import numpy as np

from backends.serving.cluster import Member
from harness.api import PartsOfSteps, StepParts

Columns = Mapping[str, np.ndarray]
UNKNOWN = (np.nan,) * len(StepParts._fields)


def columns_of_parts(
    steps: Columns, loads: Sequence[Sequence[tuple[int, int]]], members: Sequence[Member]
) -> dict[str, np.ndarray]:
    """(steps,) seconds of each part, NaN where the latency model of the replica does not know them.

    `loads` holds the pieces of prompts of each step that has some, in order.
    """
    found = np.full((len(StepParts._fields), len(steps["replica"])), np.nan)
    prefills, seqs, context = (steps[name] for name in ("prefill_tokens", "decode_seqs", "context_tokens"))
    known = [member.model if isinstance(member.model, PartsOfSteps) else None for member in members]
    mixed = np.flatnonzero(prefills)
    of_mixed = (steps["replica"][mixed].tolist(), seqs[mixed].tolist(), context[mixed].tolist())
    rows: list[Sequence[object]] = []
    for pieces, replica, decoding, tokens in zip(loads, *of_mixed, strict=True):
        model = known[replica]
        rows.append(UNKNOWN if model is None else model.step_parts(pieces, decoding, tokens) or UNKNOWN)
    if rows:
        found[:, mixed] = np.array(rows, float).T
    for i, alike in enumerate(known):
        if alike is None or any(alike is other for other in known[:i]):
            continue
        of = np.array([model is alike for model in known])
        alone = np.flatnonzero((prefills == 0) & of[steps["replica"]])
        alone = alone[np.argsort(seqs[alone], kind="stable")]
        for group in np.split(alone, np.flatnonzero(np.diff(seqs[alone])) + 1):
            if len(group) and (parts := alike.step_parts((), int(seqs[group[0]]), context[group])) is not None:
                for part, seconds in zip(found, parts, strict=True):
                    part[group] = seconds
    return dict(zip(StepParts._fields, found, strict=True))
