"""What every latency model promises: exact equalities between its three calls, and times that never fall."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.registry import make
from harness.spec import parse, text_of

SPECS = [
    "linear",
    "linear:base=7ms,prefill_token=90us,decode_seq=13us,context_token=0.3us,prefill_token_squared=3e-9",
    "abc:vllm",
    "abc:distserve,tp=4",
    "abc:vllm,model=opt-66b,tp=2,pp=2,fitted=true",
    "mixed",
    "mixed:constants=given,floor=20ms,base=3ms,token=0.1ms,seq=50us,context_token=1e-7,pp=2",
    "table",
    "table:pp=2",
    "fit6",
    "fit6:h100,model=opt-66b,tp=4,pp=2,prefill_token_squared=1e-9",
    "roofline",
    "roofline:model=llama3-70b,hardware=h100,tp=8,pp=2,seq=0.1ms",
    "fit6:h100,model=mixtral-8x22b,tp=8",
    "roofline:model=deepseek-v3,hardware=h200,tp=8,dtype_bytes=1",
    "roofline:model=mixtral-8x22b,hardware=h100,tp=4,pp=2,weight_bits=4.125,kv_bits=8,link_latency=5us",
    "roofline:model=mistral-7b,hardware=l40s,dtype_bytes=1,overhead=0",
]
models = st.sampled_from([make("latency", spec) for spec in SPECS])
decodes = st.integers(1, 600)
contexts = st.integers(0, 3_000_000)
pieces = st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 9000)), min_size=1, max_size=6)


@given(models, decodes, contexts, contexts)
def test_more_context_is_never_faster(model: Any, seqs: int, context: int, more: int) -> None:
    """Reading more KV in less time would be a gift."""
    assert model.decode_s(seqs, context) <= model.decode_s(seqs, context + more)


@given(models, decodes, st.integers(0, 200), contexts)
def test_more_sequences_are_never_faster(model: Any, seqs: int, more: int, context: int) -> None:
    """A larger batch of the same context must not end earlier (the two sets of `abc` are compared apart)."""
    if type(model).__name__ == "Abc" and seqs < 95 <= seqs + more:
        return

    assert model.decode_s(seqs, context) <= model.decode_s(seqs + more, context)


@given(models, pieces, st.integers(0, 300), contexts, st.tuples(st.integers(1, 4000), st.integers(0, 4000)))
def test_more_prompt_is_never_faster(
    model: Any, prefills: list[tuple[int, int]], seqs: int, context: int, extra: tuple[int, int]
) -> None:
    """One more piece of prompt, or one after a longer prefix, must not shorten a step.

    A table says what was measured: yi-34b's chunks after 12,032 stored tokens took less than those after 5,888.
    """
    context = context if seqs else 0
    step_s = model.step_s(prefills, seqs, context)
    longer = [(n, p + 100) for n, p in prefills]

    assert step_s <= model.step_s([*prefills, extra], seqs, context)
    if type(model).__name__ != "Table":
        assert step_s <= model.step_s(longer, seqs, context) * (1 + 1e-12)


@given(models, pieces, decodes, contexts)
def test_prompts_do_not_speed_up_decodes(model: Any, prefills: list[tuple[int, int]], seqs: int, context: int) -> None:
    """A mixed step lasts at least as long as its decodes alone, and as its prompts alone."""
    mixed_s = model.step_s(prefills, seqs, context) * (1 + 1e-12)

    assert model.decode_s(seqs, context) <= mixed_s
    assert model.step_s(prefills, 0, 0) <= mixed_s


@pytest.mark.parametrize("spec", SPECS)
def test_spec_text_builds_the_same_model_again(spec: str) -> None:
    """A run could not be repeated from its run.json."""
    model = make("latency", spec)

    assert model == make("latency", text_of(model, parse(spec).name))


@given(st.integers(1, 5000), st.lists(st.integers(1, 4999), max_size=8), st.integers(0, 3000))
def test_linear_charges_a_prompt_the_same_in_chunks(prompt: int, cuts: list[int], stored: int) -> None:
    """Cutting a prompt costs one base per further step and nothing else."""
    model = make("latency", SPECS[1])
    edges = sorted({0, prompt, *(c for c in cuts if c < prompt)})
    chunks = [(b - a, stored + a) for a, b in pairwise(edges)]

    chunked_s = sum(model.step_s([chunk], 0, 0) for chunk in chunks)

    assert chunked_s - (len(chunks) - 1) * model.base_s == pytest.approx(
        model.step_s([(prompt, stored)], 0, 0), rel=1e-12
    )
