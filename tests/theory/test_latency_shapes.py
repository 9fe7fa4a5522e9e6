"""The roofline of models in formats, with windows, and divided by data and expert parallelism."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.latency.roofline import Roofline
from backends.sim import Sim
from harness import catalog
from harness.api import Request, StepParts
from harness.catalog import Shape
from harness.cli import main
from harness.registry import make
from tests.theory.loads import loads_of

IDEAL = {"memory_share": 1.0, "flops_share": 1.0, "link_share": 1.0, "overhead_s": 0.0}


def ideal(model: str, hardware: str = "h200", **given: object) -> Roofline:
    return Roofline(model, hardware, **IDEAL, **given)  # type: ignore[arg-type]  # keyword by keyword


def test_experts_are_read_in_the_bits_of_their_format() -> None:
    """A step of gpt-oss that meets all experts reads what the checkpoint weighs, but for the input embedding."""
    m, gpu = catalog.model("gpt-oss-120b"), catalog.hardware("h200")
    read_bytes = ideal("gpt-oss-120b").decode_s(400, 0) * gpu.bandwidth_bytes_per_s
    resident = catalog.weight_bytes(m) - 2 * m.embedding
    activations = 400 * (4 * m.layers * 2 * (m.hidden + 3 * 2880) + 2 * m.vocab)

    assert resident < read_bytes < resident + 4 * activations
    assert read_bytes < catalog.weight_bytes(replace(m, formats=catalog.Formats())) / 2


@pytest.mark.parametrize(("hardware", "times"), [("h200", 2.0), ("a100-80g", 1.0)])
def test_products_run_at_the_peak_of_their_format(hardware: str, times: float) -> None:
    """FP8 matrices are multiplied twice as fast where the GPU can, else as bf16 is."""
    plain, packed = (ideal(f"qwen3-235b-a22b{end}", hardware).layers_s(65536) for end in ("", "-fp8"))

    assert times == pytest.approx(plain / packed, rel=2e-2)


def test_given_bytes_go_before_the_formats_of_the_model() -> None:
    """dtype_bytes=2 reads a packed checkpoint as the plain one, and counts its memory so."""
    plain, packed = ideal("qwen3-235b-a22b"), ideal("qwen3-235b-a22b-fp8", dtype_bytes=2)

    assert plain.step_s([(700, 30)], 9, 5000) == packed.step_s([(700, 30)], 9, 5000)
    assert packed.stored_bits == (16, 16)


def test_layers_with_a_window_read_no_more_than_it() -> None:
    """Beyond the window half the layers of gpt-oss stop adding to a decode, and to a chunk of a prompt."""
    m = catalog.model("gpt-oss-20b")
    model, per_token = ideal("gpt-oss-20b"), 2 * m.kv_width * 2 / catalog.hardware("h200").bandwidth_bytes_per_s

    def added_s(context: int) -> float:
        return (model.decode_s(8, 8 * (context + 1)) - model.decode_s(8, 8 * context)) / 8

    assert m.layers * per_token == pytest.approx(added_s(60), rel=1e-6)
    assert m.full_layers * per_token == pytest.approx(added_s(5000), rel=1e-6)
    assert model.decode_line(8) is None
    contexts = np.array([8, 900, 70000])
    assert [model.decode_s(8, int(one)) for one in contexts] == model.decode_many_s(8, contexts).tolist()


@pytest.mark.parametrize(("tokens", "stored"), [(1, 0), (100, 10), (128, 0), (500, 0), (200, 100), (64, 3000)])
def test_pairs_within_a_window_are_counted_one_by_one(tokens: int, stored: int) -> None:
    """The closed form of a chunk equals the sum over its tokens of what each sees."""
    one = next(kind for kind in ideal("gpt-oss-20b")._attention if kind.window)
    pairs = sum(min(stored + i, one.window) for i in range(1, tokens + 1))
    read = tokens + min(stored, one.window) if stored + tokens > one.window else tokens + stored

    assert max(pairs * one.pair_s, read * one.stored_s) == pytest.approx(one.piece_s(tokens, stored), rel=1e-12)


def test_data_parallel_groups_share_sequences_and_repeat_weights() -> None:
    """Two groups take as long as one with half the sequences; but the longest piece of a prompt is not divided."""
    one, two = ideal("llama3-8b"), ideal("llama3-8b", dp=2)

    assert one.decode_s(16, 32000) == pytest.approx(two.decode_s(32, 64000), rel=1e-12)
    assert one.decode_s(17, 34000) == pytest.approx(two.decode_s(33, 68000), rel=1e-12)
    assert one.step_s([(512, 0)], 0, 0) == pytest.approx(two.step_s([(512, 0)], 0, 0), rel=1e-12)
    assert one.step_s([(512, 0)], 0, 0) == pytest.approx(two.step_s([(512, 0), (512, 0)], 0, 0), rel=1e-12)


def test_experts_on_parts_are_whole_and_meet_the_tokens_of_all_groups() -> None:
    """32 GPUs of attention on their own and experts together read what the shape says lies on each."""
    shape, gpu = Shape(dp=8, ep=8), catalog.hardware("h200")
    model = ideal("deepseek-v3-fp8", dp=8, ep=8)
    of = model._layers_of(4096, 512)
    experts_bytes = 58 * 256 / 8 * catalog.model("deepseek-v3-fp8").expert_matrix * 8.001953125 / 8

    assert experts_bytes < of.experts_s * gpu.bandwidth_bytes_per_s < 1.2 * experts_bytes
    assert of.total_s == pytest.approx(of.linear_s + of.experts_s + of.communication_s, rel=1e-12)
    assert experts_bytes < catalog.weight_bytes(catalog.model("deepseek-v3-fp8"), shape)


def test_tokens_go_only_to_parts_with_a_chosen_expert() -> None:
    """On one part all tokens go everywhere; on 32, a token with 8 choices meets 32 (1 - (31/32)^8) of them, over
    the network where a node has 8 GPUs."""
    gpu, sent = catalog.hardware("h200"), 4096 * 7168 * 2
    near, far = ideal("deepseek-v3-fp8", dp=8), ideal("deepseek-v3-fp8", dp=32, ep=32)

    assert 7 / 8 * sent / gpu.link_bytes_per_s == pytest.approx(near.exchange_s(4096))
    inside = 31 / 32 * (1 - (31 / 32) ** 8) * sent / gpu.link_bytes_per_s
    between = 3 / 4 * (1 - (3 / 4) ** 8) * sent / 8 / 50e9  # once to a node, an eighth over the network of each GPU
    assert inside + between == pytest.approx(far.exchange_s(4096))


def test_a_limit_of_nodes_and_a_skew_of_experts_count() -> None:
    """DeepSeek-V3 sends a token to four groups of experts at most; a popular expert makes all others wait."""
    shape = {"hardware": "h100", "tp": 1, "dp": 128, "ep": 128, "link_share": 1.0}
    v3, gpu = make("latency", "roofline:model=deepseek-v3-fp8", **shape), catalog.hardware("h100")
    tokens, sent = 8192, 8192 * 7168 * 2
    inside = 127 / 128 * (1 - (127 / 128) ** 8) * sent / gpu.link_bytes_per_s
    assert inside + 15 / 16 * 4 / 16 * sent / 8 / 50e9 == pytest.approx(v3.exchange_s(tokens))

    skewed = make("latency", "roofline:model=deepseek-v3-fp8,skew=2", **shape)
    parts = [one.step_parts(loads_of(((), 8192, 8_000_000))).experts_s[0] for one in (v3, skewed)]
    assert 1 < parts[1] / parts[0] < 2


def test_a_replica_of_groups_has_the_memory_and_the_gpus_of_all(tmp_path: Path) -> None:
    """KV of two groups adds up beside weights that each repeats; GPUs and goodput per GPU count all of them."""
    options = ["--backend", "sim:dp=8,ep=8", "--model", "deepseek-v3-fp8", "--hardware", "h200",
               "--requests", "20", "--rate", "4", "--no-html", "--quiet", "--out", str(tmp_path / "run")]  # fmt: skip

    assert main(["run", *options]) == 0
    of = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["backend"]
    blocks = catalog.kv_capacity_blocks("deepseek-v3-fp8", "h200", Shape(dp=8, ep=8), utilisation=0.9, seqs=128)
    assert (8, 8, 8) == (of["gpus"], of["dp"], of["ep"])
    assert blocks == pytest.approx(of["kv_blocks"], rel=1e-2)


def test_sides_have_shapes_of_their_own() -> None:
    """`prefill=1:dp=4,ep=4,hardware=h200` divides that side alone."""
    sim = Sim(
        "qwen3-235b-a22b-fp8", "h100", prefill="1:dp=4,ep=4,hardware=h200", decode="1:tp=8", link="400Gbps",
        prefix_cache="off",
    )  # fmt: skip
    facts = sim.describe()

    assert 12 == facts["gpus"] == sum(member.gpus for member in sim.cluster.members)
    assert (4, 4, "h200") == tuple(facts["prefill"][name] for name in ("dp", "ep", "hardware"))  # type: ignore[index]  # object
    assert 8 == facts["decode"]["gpus"]  # type: ignore[index]  # object


def test_the_latency_model_of_another_shape_is_refused() -> None:
    """Memory would be counted for one division and time for the other."""
    with pytest.raises(catalog.tables.UsageError, match="is for dp=2, but the system has dp=1"):
        make("backends", "sim", model="mixtral-8x22b", latency="roofline:dp=2", dp=1)


@pytest.mark.parametrize("spec", ["model=llama3-8b", "model=llama3-8b,pp=2", "model=gpt-oss-20b,hardware=h200",
                                  "model=mixtral-8x22b,dp=4,ep=2,hardware=h200,seq_s=1ms"])  # fmt: skip
@pytest.mark.parametrize("step", [((), 17, 9000), (((512, 100), (30, 0)), 17, 9000), (((512, 0),), 0, 0)])
def test_the_parts_of_a_step_add_up_to_it(spec: str, step: tuple[tuple[tuple[int, int], ...], int, int]) -> None:
    """A part that is missing or counted twice would explain a time that no step has."""
    model = make("latency", f"roofline:{spec}")
    parts = model.step_parts(loads_of(step))

    assert model.pp * model.step_s(*step) == pytest.approx(sum(parts)[0], rel=1e-12)
    assert all(part[0] >= 0 for part in parts)
    assert (parts.experts_s > 0) == ("llama" not in spec)
    many = model.step_parts(loads_of(((), 3, 4000), step, (((9, 0),), 3, 0)))
    assert all(several[1] == one[0] for several, one in zip(many, parts, strict=True))


@pytest.mark.parametrize("given", [{"leap": True}, {"replicas": 2}, {"tp": 2, "leap": False}])
def test_the_steps_table_holds_the_parts_of_each_step(given: dict[str, Any]) -> None:
    """Also of steps that were logged as a leap, and with prompts in them."""
    sim = Sim("llama3-8b", "h100", **given)
    requests = (Request(i, i / 5, 700 + i, 60) for i in range(40))
    assert 40 == len(list(sim.simulate(requests)))
    steps = sim.steps_table()
    total_s = sum(steps[name].to_numpy() for name in StepParts._fields)

    assert total_s == pytest.approx(steps["end_s"].to_numpy() - steps["start_s"].to_numpy(), rel=1e-9)
    assert (steps["communication_s"].to_numpy() > 0).all() == ("tp" in given)


def test_parts_that_a_model_does_not_know_are_absent() -> None:
    """A zero would be read as a part that takes no time."""
    sim = Sim(latency="linear")
    assert 1 == len(list(sim.simulate([Request(0, 0.0, 50, 5)])))

    steps = sim.steps_table()
    assert all(steps[name].null_count == len(steps) == 5 for name in StepParts._fields)


def test_parts_of_operators_add_up_to_their_step(tmp_path: Path) -> None:
    """Times of kernels are apart, those of a file are not; norms count with the matrices they stand between."""
    axes = {"tokens": [1, 4096], "seqs": [1, 64], "decode_seqs": [1, 64], "decode_context": [0, 8192],
            "chunk": [1, 4096], "stored": [0, 8192]}  # fmt: skip
    apart = {
        "linear_s": [4e-3, 2e-2],
        "experts_s": [2e-3, 1e-2],
        "communication_s": [1e-3, 8e-3],
        "other_s": [5e-4, 2e-3],
    }
    times = {"dense_s": np.sum([*apart.values()], 0).tolist(), "head_s": [1e-4, 2e-4],
             "decode_s": [[1e-4, 1e-3], [2e-4, 9e-3]], "prefill_s": [[1e-5, 1e-4], [3e-3, 9e-3]]}  # fmt: skip
    (tmp_path / "times.json").write_text(json.dumps(axes | times), encoding="utf-8")
    model = make("latency", f"operators:file={tmp_path / 'times.json'},overhead_s=1ms,seq_s=10us,scale=1.1")

    assert model.step_parts(loads_of(((), 8, 900))) is None
    model._keep({name: np.array(values, float) for name, values in (axes | times | apart).items()})
    for prefills, seqs, context in (((), 8, 900), (((300, 20), (9, 0)), 8, 900), (((50, 0),), 0, 0)):
        parts = model.step_parts(loads_of((prefills, seqs, context)))
        assert model.step_s(prefills, seqs, context) == pytest.approx(sum(parts)[0], rel=1e-12)
        tokens = seqs + sum(new for new, _ in prefills)
        assert 1.1 * np.interp(tokens, [1, 4096], apart["experts_s"]) == pytest.approx(parts.experts_s)
