"""Every preset can be listed, explained, drawn and run, and is what its sources say."""

import re
import tomllib
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from backends.sim import Sim
from harness.cli import main
from harness.data.dependencies import Releases
from harness.data.schedule import Schedule
from harness.metrics.objective import parse_slo
from harness.options import RunSpec
from harness.runner.plan import plan
from workloads import _presets, catalog
from workloads._build import copied, weights_of
from workloads.blend import Blend
from workloads.lengths.builtin import Normal, ReasoningInBudget
from workloads.mixed import Mixed
from workloads.prefixes import Prefixes, id_lists

DRAWN = [name for name in catalog.presets() if not name.startswith("deck-")]


def draw(name: str, requests: int = 2000, seed: int = 0) -> Schedule:
    return Schedule.draw(catalog.load(name).workload, seed=seed, requests=requests)


@pytest.mark.parametrize("name", DRAWN)
def test_a_preset_draws_what_it_declares(name: str) -> None:
    """If this failed, a preset would be listed that gives other traffic than it says."""
    loaded = catalog.load(name)
    drawn = draw(name)

    assert 2000 == len(drawn)
    assert drawn.sha256 == draw(name).sha256
    assert str(parse_slo(loaded.slo_text)) == loaded.slo_text
    assert loaded.requests
    if isinstance(loaded.workload, Mixed) and loaded.workload.sessions is None:
        stated = np.array(loaded.workload.lengths.mean_tokens)
        if (prefixes := loaded.workload.prefixes) is not None:  # of one length, in every prompt
            stated += (prefixes.lengths_tokens[0], 0)
        found = np.array([drawn.table[c].to_numpy() for c in ("prompt_tokens", "output_tokens")])
        assert np.all(np.abs(found.mean(axis=1) - stated) <= 4.5 * found.std(axis=1) / np.sqrt(2000) + 1e-9)


TOO_LONG = ("long-tail", "coding-agent", "loongserve-mixed")
"""Their longest do not fit."""


@pytest.mark.parametrize("name", catalog.presets())
def test_a_preset_runs_to_its_end(name: str) -> None:
    """If this failed, a preset would have requests that are never sent, or follow-ups that never come."""
    schedule = draw(name, min(50, catalog.load(name).requests or 50))
    lost: list[Any] = []
    follow_ups = Releases(schedule, lost.append) if schedule.has_follow_ups else None
    ended = list(Sim(model="llama2-7b", hardware="a100-80g").simulate(schedule.planned(), follow_ups))

    assert len(schedule) == len({r.request_id for r in [*ended, *lost]}) == len(ended) + len(lost)
    assert {"ok"} >= {r.status for r in ended} or name in TOO_LONG


@pytest.mark.parametrize("name", [name for name in DRAWN if isinstance(catalog.load(name).workload, Blend)])
def test_the_classes_of_a_mix_have_their_shares_of_the_arrivals(name: str) -> None:
    """If this failed, a mix would be another mix."""
    preset = _presets.read(catalog.parse(name))
    workload: Any = catalog.load(name).workload
    classes = copied(preset.classes)
    each = [1.0 if c.sessions is None else c.sessions.mean_requests for c in workload.classes]
    weights = weights_of(classes, each, preset.shares_of)
    rates = np.array([c.arrivals.mean_rate_rps for c in workload.classes])

    np.testing.assert_allclose(weights, rates / rates.sum())
    assert catalog.load(name).rate_rps == pytest.approx(rates @ each)
    if name not in ("burstgpt", "online-offline"):  # campaigns come and go within days, the rate wanders
        table = draw(name, 5000).table
        starts = table.filter(pc.equal(pc.list_value_length(table["after"]), 0))["tag"].to_pylist()
        found = np.array([starts.count(c.tag) for c in workload.classes]) / len(starts)
        np.testing.assert_allclose(found, weights, atol=4.5 * np.sqrt(0.25 / len(starts)))


@pytest.mark.parametrize("name", catalog.presets())
def test_every_number_of_a_preset_has_a_source_beside_it(name: str) -> None:
    """If this failed, published and invented numbers could not be distinguished."""
    text = catalog.preset_text(name)
    explained = catalog.explain(name)

    assert re.search(r"source|slo_source|lengths = \"(sharegpt|azure|mooncake|humaneval|longbench)", text)
    assert tomllib.loads(text)["about"].strip() in explained
    for word in ("Source:", "Tokenizer:", "Preparation:", "Default SLO:"):
        assert word in explained


def test_explaining_a_mix_tells_classes_sessions_and_sharing() -> None:
    """If this failed, who runs `slo-mix` would not know what is in it."""
    text = catalog.explain("slo-mix")

    for words in (
        "Classes: 3",
        "mean 2 requests/s (0.8571 arrivals/s, each with its follow-ups)",
        "compound: lengths sharegpt:preparation=first-turn; sessions compound:stages=1/3/1, mean 5 requests",
        "deadline of a task 60 s",
        "bench trace generate slo-mix",
        "TTFT at most 2 s for chat",
    ):
        assert words in text


def test_prefixes_of_80_and_341_tokens_are_shared() -> None:
    """If this failed, the prefix experiment would have nothing to find, or too much."""
    table = draw("shared-prefix", 4000).table
    for tag, tokens, blocks in (("one-shot", 80, 16), ("five-shot", 341, 341)):
        part = table.filter(pc.equal(table["tag"], tag))
        prefixes = {tuple(ids) for ids in part["prefix_ids"].to_pylist()}

        assert 10 == len(prefixes)
        assert [blocks] == part["prefix_block_tokens"].unique().to_pylist()
        assert tokens < pc.min(part["prompt_tokens"]).as_py()
        assert {tokens // blocks} == {len(ids) for ids in prefixes}


def test_three_percent_of_the_documents_get_sixty_percent_of_the_requests() -> None:
    """A prefix cache would find more or less than in the study that the preset names."""
    table = draw("rag", 20_000).table
    first = np.array([ids[0] for ids in table["prefix_ids"].to_pylist()])
    lists = id_lists(Prefixes(10_000, "1008").run(np.arange(300), np.ones(300, bool)))
    popular = np.isin(first, [ids[0] for ids in lists.to_pylist()])

    assert 0.6 == pytest.approx(popular.mean(), abs=0.015)
    assert {63} == {len(ids) for ids in table["prefix_ids"].to_pylist()}
    assert 1108 == pytest.approx(pc.mean(table["prompt_tokens"]).as_py(), rel=0.01)


def test_each_adapter_is_a_class_whose_requests_name_it() -> None:
    """All adapters would be measured as the base model, or their popularity would be another than published."""
    requests = list(draw("lora", 5000))
    counts = Counter(r.extra.model for r in requests if r.extra is not None)

    assert all(r.extra is not None and r.extra.model == r.tag for r in requests)
    assert {f"adapter-{k:03}" for k in range(1, 201)} == set(counts)
    assert max(counts.values()) < 55, "25 each on average"
    assert {"base/t-1", "base/t-2"} == {
        c.model for c in copied((_presets.Class("t", "fixed", copies=2, model="base/<class>"),))
    }


def test_conversations_of_burstgpt_have_prompts_as_published() -> None:
    """If this failed, the context of a chat would not grow as people's does: 170 tokens first, about 1,199 later."""
    table = draw("burstgpt", 100_000).table
    chat = table.filter(pc.equal(table["tag"], "conversation"))
    prompt, turn = chat["prompt_tokens"].to_numpy(), chat["turn"].to_numpy()

    assert 170 == pytest.approx(prompt[turn == 0].mean(), rel=0.1)
    assert 1199 == pytest.approx(prompt[turn > 0].mean(), rel=0.25)
    assert 0 < (prompt > 2045).mean() < 0.01  # those that are too long alone


def test_prompts_of_burstgpt_grow_and_shrink_as_published() -> None:
    """If this failed, histories would never be cut, or always: growth -124 / +125 / +642 at p10 / p50 / p90."""
    table = draw("burstgpt", 100_000).table
    chat = table.filter(pc.equal(table["tag"], "conversation"))
    prompt = dict(zip(chat["id"].to_pylist(), chat["prompt_tokens"].to_pylist(), strict=True))
    before = chat["after"].combine_chunks()
    grown = [prompt[i] - prompt[a[0]] for i, a in zip(chat["id"].to_pylist(), before.to_pylist(), strict=True) if a]
    p10, p50, p90 = np.quantile(grown, [0.1, 0.5, 0.9])

    assert -400 < p10 < 0 < p50 < 300  # histories are cut less often than in the data, and by more at a time
    assert 450 < p90 < 850


def test_all_requests_of_the_memory_mixes_wait_from_the_start() -> None:
    """If this failed, admission would be measured on an empty queue."""
    for name in ("decode-heavy", "balanced", "prefill-heavy"):
        assert {0.0} == set(draw(name, 300).table["scheduled_s"].to_pylist())


def test_clients_of_the_fastgen_presets_never_think() -> None:
    """If this failed, their closed loop would not be that of the published curves."""
    requests = list(draw("fastgen-2600-60", 64))

    assert 16 == sum(not r.after for r in requests)
    assert {0.0} == {r.delay_s for r in requests}
    assert max(r.prompt_tokens for r in draw("fastgen-2600-60", 2000)) == 4000


def test_reasoning_and_answer_make_the_output_within_the_budget() -> None:
    """If this failed, the two lengths of a reasoning request would not add up, or pass the budget."""
    lengths = ReasoningInBudget(budget_tokens=3000)
    parts = np.array(list(islice(lengths.parts(np.random.default_rng(0)), 20_000)))  # (N, 3)
    pairs = np.array(list(islice(lengths.pairs(np.random.default_rng(0)), 20_000)))

    np.testing.assert_array_equal(pairs[:, 1], parts[:, 1] + parts[:, 2])
    assert 3000 == pairs[:, 1].max()
    assert 0 == parts[parts[:, 1] == 3000, 2].max()
    assert 0.2 < (pairs[:, 1] == 3000).mean() < 0.6


def test_capped_normal_lengths_say_their_mean() -> None:
    """If this failed, the cut prompts would not be counted in the load that is stated."""
    lengths = Normal(prompt_cap_tokens=2600)
    pairs = np.array(list(islice(lengths.pairs(np.random.default_rng(0)), 50_000)))

    assert pairs[:, 0].mean() == pytest.approx(lengths.mean_tokens[0], rel=0.005)
    assert 0.5 == pytest.approx((pairs[:, 0] == 2600).mean(), abs=0.02)


def test_the_preset_of_the_guide_is_one(tmp_path: Path) -> None:
    """If this failed, who copies the example of the guide would begin with an error."""
    guide = Path(__file__).resolve().parents[2] / "docs" / "guide" / "workloads.md"
    blocks = re.findall(r"^```toml\n(.*?)^```", guide.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (tmp_path / "mine.toml").write_text(blocks[0])
    loaded = catalog.load(str(tmp_path / "mine.toml"))

    assert "ttft@chat=1" == loaded.slo_text
    assert {"chat", "batch"} == set(Schedule.draw(loaded.workload, seed=0, requests=200).table["tag"].to_pylist())


def test_a_run_of_a_preset_file_repeats_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, `bench run --config run.json` would only work where the file lies."""
    (tmp_path / "mine.toml").write_text('about = "mine"\nlengths = "fixed"\n')
    monkeypatch.chdir(tmp_path)
    planned = plan(RunSpec(workload="mine.toml", backend="null", requests=5))

    assert str(tmp_path / "mine.toml") == planned.spec.workload
    assert "chatbot" == plan(RunSpec(workload="chatbot", backend="null", requests=5)).spec.workload


def test_a_preset_file_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If this failed, who writes a preset could not see what it comes to before a run."""
    (tmp_path / "mine.toml").write_text('about = "what I see here"\nlengths = "fixed"\nsessions = "fixed:turns=2"\n')

    assert 0 == main(["explain", str(tmp_path / "mine.toml")])
    assert "what I see here" in (shown := capsys.readouterr().out)
    assert "Sessions: fixed:turns=2, mean 2 requests each" in shown


def test_a_client_pool_is_a_workload(shared_data: Any) -> None:
    """If this failed, lengths and bursts of one client could not be drawn together."""
    pool = shared_data / "traces" / "servegen" / "reason" / "deepseek-r1"
    loaded = catalog.load(f"servegen:{pool}", rate_rps=3.0)

    assert 3.0 == pytest.approx(loaded.rate_rps)
    assert 500 == len(Schedule.draw(loaded.workload, seed=0, requests=500))
