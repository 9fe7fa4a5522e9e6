"""Objectives as multiples of a decode step, as Sarathi-Serve defines its own."""

from collections.abc import Iterator

from acceptance.rows import Place, Row


def rows(place: Place) -> Iterator[Row]:
    """SLOs as multiples of a decode step (S10)."""
    del place
    yield from _slos()


def _slos() -> Iterator[Row]:
    from harness import registry
    from harness.experiments.theory.batching import decode_step_s, published
    from harness.experiments.theory.forms.builtin import STEPS

    expected = {"mistral-7b": (0.1, 0.5), "yi-34b": (0.2, 1.0), "llama2-70b": (1.0, 5.0), "falcon-180b": (1.0, 5.0)}
    obtained = {name: (row.strict_s, row.relaxed_s) for name, row in published().items()}
    yield Row(
        "S10.a", "Sarathi-Serve SLOs", "formula", "P99 ITL .1/.5, .2/1, 1/5, 1/5 s (table 3)",
        ", ".join(f"{a:g}/{b:g} s" for a, b in obtained.values()), "exact", expected == obtained,
        "bench theory slo --over model=mistral-7b,yi-34b,llama2-70b,falcon-180b",
    )  # fmt: skip
    step_s = decode_step_s(registry.make("latency", "linear:base=0.01,decode_seq=0.0002,context_token=0.0000001"))
    derived = [steps * step_s for steps in STEPS.values()]
    known = 0.01 + 32 * 0.0002 + 32 * 4096 * 1e-7
    yield Row(
        "S10.b", "Sarathi-Serve SLOs", "formula", f"5x and 25x a step of {known * 1e3:.4f} ms (synthetic)",
        f"{derived[0] * 1e3:.4f} and {derived[1] * 1e3:.4f} ms", "exact",
        all(abs(d - f * known) < 1e-12 for d, f in zip(derived, (5, 25), strict=True)),
        "bench theory slo --over 'latency=linear:base=0.01,decode_seq=0.0002,context_token=0.0000001|'",
    )  # fmt: skip
