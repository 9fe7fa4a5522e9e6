"""Policies as vLLM's scheduler: its batches are those of the core, its answers those of the model."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from backends.simulator.core import Core
from harness.api import Request
from harness.cli import main

TOP = Path(__file__).resolve().parents[3]
POLICIES = ["vllm-v0", "vllm-v1:budget=96,max_seqs=32", "sarathi:budget=64,max_seqs=16", "orca", "static:pad=false",
            "fastgen:budget=96", "chunk-only:budget=64", "shortest-prompt:max_seqs=16"]  # fmt: skip
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}


def case(policy, seed, kv="paged"):
    """Some thirty requests within forty steps, of which some end early and some clients go away."""
    rng = np.random.default_rng([seed, *policy.encode()])
    requests = []
    for at in sorted(rng.integers(0, 40, 30).tolist()):
        prompt, output = int(rng.integers(1, 120)), int(rng.integers(1, 40))
        end = int(rng.integers(1, output + 1)) if rng.random() < 0.3 else None
        gone = at + int(rng.integers(1, 30)) if rng.random() < 0.15 else None
        requests.append([at, prompt, output, end, gone])
    return {"options": {"bench_policy": policy, "bench_kv": kv}, "seqs": 32, "tokens": 4096, "block": 16, "blocks": 40,
            "steps": 1000, "requests": requests, "pause": None, "go": None}  # fmt: skip


def of_the_core(given):
    """The steps of the core alone, with the same calls."""
    core = Core.of(given["options"]["bench_policy"], given["options"]["bench_kv"])
    replica = core.replica(core.memory(), given["blocks"])
    left, steps = {}, []
    for step in range(given["steps"]):
        now_s = float(step)
        for number, (at, prompt, output, end, gone) in enumerate(given["requests"]):
            if gone == step and number in left:
                del left[number]
                replica.cancel(number, now_s)
            if at == step:
                assert replica.add(Request(number, now_s, prompt, output), now_s) is None
                left[number] = end
        if not left and all(at <= step for at, *_ in given["requests"]):
            return steps
        batch = replica.schedule(now_s)
        if batch is None:
            steps.append({"tokens": {}, "preempted": [], "ended": []})
            continue
        items = batch.items(iter(replica.decoding))
        tokens = {seq.request.id: count for seq, count in items}
        stops = [s.request.id for s, n in items if n == s.need() and s.emitted + 1 == left[s.request.id]]
        ended = [seq.request.id for seq in replica.commit(batch, (now_s,))]
        ended += [number for number in stops if number not in ended and replica.stop(number, now_s)]
        for number in ended:
            del left[number]
        steps.append(
            {"tokens": tokens, "preempted": sorted(s.request.id for s in batch.preempted), "ended": sorted(ended)}
        )
    raise AssertionError("the requests did not end")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A package with the policy of the guide, and this checkout: what a user of vLLM has on the path."""
    folder = tmp_path_factory.mktemp("site")
    facts = folder / "shortest_prompt-1.0.dist-info"
    facts.mkdir()
    (folder / "shortest_prompt.py").write_text((TOP / "docs" / "examples" / "shortest_prompt.py").read_text())
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: shortest-prompt\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[bench.policies]\nshortest-prompt = shortest_prompt:ShortestPrompt\n")
    return folder


def test_batches_are_those_of_the_core(environment, tiny, site, monkeypatch):
    """A policy measured in vLLM would not be the one that was simulated."""
    from harness import registry

    monkeypatch.syspath_prepend(site)
    registry._all_entry_points.cache_clear()
    cases = [case(policy, seed) for policy in POLICIES for seed in range(4)]
    cases += [case("orca", seed, "reserve-oracle") for seed in range(4)]
    paused = {**case("sarathi:budget=64,max_seqs=16", 0), "pause": 20, "go": 300}
    done = subprocess.run(
        [environment("vllm") / "python", TOP / "tests" / "real" / "vllm_batches.py", tiny("ascii")],
        input=json.dumps([*cases, paused]), capture_output=True, text=True, check=False, timeout=280,
        env={**os.environ, **OFFLINE, "PYTHONPATH": os.pathsep.join([str(site), str(TOP)])},
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr[-3000:]
    *ran, last = json.loads(done.stdout.splitlines()[-1])
    preempted = 0
    for given, steps in zip(cases, ran, strict=True):
        found = [{**step, "tokens": {int(k): n for k, n in step["tokens"].items()}} for step in steps]
        expected = of_the_core(given)
        assert expected == found[: len(expected)], given
        assert not any(step["tokens"] for step in found[len(expected) :])  # vLLM frees what is over in one more step
        preempted += sum(len(step["preempted"]) for step in found)
    first = {number: step for step, found in reversed([*enumerate(last)]) for number in found["tokens"]}
    assert preempted > 50
    assert not any(20 <= step < 300 for step in first.values())
    assert not any(found["tokens"] for found in last[290:300])  # those that ran have ended
    assert any(step >= 300 for step in first.values())
    registry._all_entry_points.cache_clear()


@pytest.fixture(scope="module")
def server(vllm_under):
    return vllm_under("sarathi:budget=64,max_seqs=8")


def test_answers_under_a_policy_are_those_without_it(server, vllm, kit):
    """Chunks, preemption and recomputation would read the KV of another sequence."""
    prompts = [kit.words(30 + 10 * i, seed=i) for i in range(8)]

    def answer(address, prompt):
        body = {"model": "tiny-ascii", "prompt": prompt, "max_tokens": 400, "temperature": 0, "ignore_eos": True}
        return kit.ask(f"{address}/v1/completions", body)["choices"][0]["text"]

    with ThreadPoolExecutor(len(prompts)) as pool:
        texts = list(pool.map(partial(answer, server), prompts))
    metrics = kit.ask(f"{server}/metrics")
    [preemptions] = re.findall(r"^vllm:num_preemptions_total\{.*\} (\S+)$", metrics, re.MULTILINE)

    assert [answer(vllm("ascii"), prompt) for prompt in prompts] == texts
    assert float(preemptions) > 0


def test_a_request_that_can_never_run_ends_with_an_error(server, kit):
    """A scheduler that waits for memory that will never be there hangs its client."""
    body = {
        "model": "tiny-ascii",
        "prompt": kit.words(10, seed=1),
        "max_tokens": 400,
        "response_format": {"type": "json_object"},
    }

    assert 500 == kit.status_of(f"{server}/v1/chat/completions", {
        **body, "messages": [{"role": "user", "content": body.pop("prompt")}]
    })  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="the engine pins its threads on Linux alone")
def test_one_command_measures_simulator_engine_and_vllm(server, tmp_path, capsys):
    """The three would be measured with traffic of their own, and compared all the same."""
    policy, runs = "sarathi:budget=64,max_seqs=8", tmp_path / "runs"
    code = main([
        "policy", policy, "--workload", "uniform:prompt_max_tokens=64,output_max_tokens=32", "--requests", "12",
        "--seeds", "1", "--rate", "4,8", "--out", str(runs), "--vllm", f"{server}/v1", "--format", "json",
    ])  # fmt: skip
    rows = json.loads(capsys.readouterr().out)["tables"][0]["rows"]
    found = [json.loads(file.read_text()) for file in runs.glob("*/points/rate=4*/seed-0/run.json")]

    assert code in (0, 4)  # 4: a run is not valid, as on a machine that is busy
    assert [[rate, policy, on] for rate in (4.0, 8.0) for on in ("engine", "simulator", "vllm")] == [
        r[:3] for r in rows
    ]
    assert [12, 12, 12] == [run["summary"]["status"]["ok"] for run in found]
    assert 1 == len({run["schedule"]["sha256"] for run in found})
