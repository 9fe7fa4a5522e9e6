"""SLOs as multiples of a decode step, after Sarathi-Serve."""

import pytest

from backends.systems.sarathi_serve import PUBLISHED_S, slo
from harness import registry

LINEAR = "linear:base=0.01,decode_seq=0.0002,context_token=0.0000001"
STEP_S = 0.01 + 32 * 0.0002 + 32 * 4096 * 1e-7


def test_a_decode_step_is_that_of_32_sequences_with_4k_tokens_each():
    """An SLO derived at another batch would be called Sarathi's, and be another one."""
    assert STEP_S == pytest.approx(slo(latency=LINEAR)[0]["decode_step_s"], rel=1e-15)


def test_the_published_slos_are_those_of_the_paper():
    """Sarathi-Serve, table 3: a digit off, and its figures could not be repeated."""
    assert {
        "mistral-7b": (0.1, 0.5),
        "yi-34b": (0.2, 1.0),
        "llama2-70b": (1.0, 5.0),
        "falcon-180b": (1.0, 5.0),
    } == PUBLISHED_S


def test_a_batch_passes_every_stage_of_a_pipeline():
    """Two stages would halve the time between tokens, which they do not."""
    stage = registry.make("latency", "roofline", model="llama2-70b", tp=4, pp=2)

    assert 2 * stage.decode_s(32, 32 * 4096) == slo("llama2-70b", tp=4, pp=2)[0]["decode_step_s"]
