"""Leaping over equal steps beside stepping: what both simulators must agree on."""

from backends.sim import Sim


def leapt(requests, follow_ups=None, **fields):
    """The records of a simulation that leaps, and the simulator, once one that steps has given the same bit for bit."""
    seen = []
    for leap in (False, True):
        sim = Sim(**fields, leap=leap)
        records = list(sim.simulate(requests, follow_ups))
        sim.cluster.check()
        order = (lambda r: r.request_id) if len(sim.cluster.replicas) > 1 else lambda _: 0
        stamps = [
            (r.request_id, r.replica, list(r.token_s), r.prefill_start_s, r.handoff_start_s, r.handoff_end_s,
             r.decode_start_s, r.cached_tokens, r.preemptions, r.status)
            for r in sorted(records, key=order)
        ]  # fmt: skip
        seen.append((stamps, sim.steps_table().sort_by([("replica", "ascending"), ("start_s", "ascending")])))

    assert seen[0][0] == seen[1][0]
    assert seen[0][1].equals(seen[1][1])
    assert len(seen[0][1])
    return records, sim
