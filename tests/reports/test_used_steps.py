"""A run with drafts, a padded batch or a rule of admission says what these made of its steps."""

import pytest

from harness.options import Given, run_spec
from reports._rows import _used


def used(run_of, **options: str) -> list[str]:
    """The facts of a simulated run with these options."""
    return list(_used(run_of({"backend": "sim", **options})))


@pytest.fixture
def run_of(tmp_path):
    """Maps options to a run read back."""
    from harness.data.folder import load
    from harness.runner.run import execute

    def made(options):
        execute(run_spec(Given(options)), out=tmp_path / "run", force=True)
        return load(tmp_path / "run")

    return made


def test_a_padded_batch_says_how_many_slots_gave_a_token(run_of):
    """The lecture's 26 of 32 slot-steps would be in no output (K01.a)."""
    found = used(run_of, workload="deck-slots", requests="4", policy="static:batch=4")

    assert ["81.3% of the slots of all steps gave a token"] == found


def test_drafts_say_how_many_tokens_a_step_gives(run_of):
    """The closed form of what is accepted could be compared with nothing."""
    (found,) = used(run_of, workload="fixed:prompt=16,output=4000", requests="4", rate="100", latency="linear",
                    policy="vllm-v0", backend="sim:speculate=[k=4,alpha=0.7],kv=paged:blocks=4000")  # fmt: skip

    assert found.endswith(" tokens a step of a sequence")
    assert pytest.approx((1 - 0.7**5) / 0.3, rel=0.03) == float(found.split()[0])


def test_a_rule_of_admission_says_what_memory_it_fills_and_what_it_evicts(run_of):
    """Memory and evictions are what such rules are compared by (K07)."""
    options = {"workload": "uniform:prompt_max_tokens=64,output_max_tokens=256", "requests": "40", "rate": "1000",
               "policy": "vllm-v0"}  # fmt: skip
    memory = "sim:kv=[paged:block_tokens=1,watermark=0,blocks=1000]"
    held, evicted = used(run_of, backend=f"{memory},admission=aggressive", **options)

    assert used(run_of, backend=memory, **options) == []
    assert held.endswith("% of KV memory held while requests waited, from the first end on")
    assert float(held.partition("%")[0]) > 90
    assert float(evicted.partition("%")[0]) > 0
