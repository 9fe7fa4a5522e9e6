"""How many requests a server gets before the first measured one: of a run, and of commands of many runs."""

from collections.abc import Callable

import pytest

from harness.data.folder import load

TRAFFIC = ("--lengths", "fixed:prompt=30,output=2", "--requests", "4", "--rate", "50", "--calibrate", "off")
UNMEASURED = ["models", "fields", "tokenizer", "tokenizer", "prompt lengths"]


def _unmeasured(server: object, name: str = "calm") -> int:
    """POSTs for an answer whose id is not that of a schedule."""
    return sum(int(seen.headers.get("x-request-id", 0)) < 0 for seen in server.of(name, measured=False))


@pytest.mark.parametrize(("mode", "sent"), [("short", 2), pytest.param("off", 0, marks=pytest.mark.nightly)])
def test_a_run_probes_as_configured_and_reports_it(
    mode: str, sent: int, scripted: Callable, run_here: Callable
) -> None:
    """Unwanted requests would be paid for, and stand in no report."""
    server = scripted(calm={"overhead": 5})
    backend = f"openai:url={server.url()},model=m,probe={mode}"
    code, _, err = run_here("run", "--backend", backend, *TRAFFIC, "--no-html", "--out", "out")
    info = load("out").info

    assert 0 == code, err
    assert sent == _unmeasured(server) and 4 == sum(
        int(seen.headers.get("x-request-id", -1)) >= 0 for seen in server.seen
    )
    facts = info.backend["probe"]
    assert (mode, False) == (facts["mode"], facts["reused"])
    requested = [one["purpose"] for one in facts["requests"] if one["purpose"] not in ("models", "tokenizer")]
    assert sent == len(requested)
    if mode == "short":
        assert UNMEASURED == [one["purpose"] for one in facts["requests"]]
        assert "probed (short) by 5 unmeasured requests: models, fields, tokenizer (2), prompt lengths" in err
    if mode == "off":
        assert [] == [seen for seen in server.seen if seen.path.endswith("/models")]
        assert "not probed (probe=off)" in err


def test_a_sweep_probes_once(scripted: Callable, run_here: Callable) -> None:
    """Each of a hundred points would ask the server again, and warm its caches."""
    server = scripted(calm={"overhead": 5})
    code, _, err = run_here(
        "sweep", "--backend", f"openai:url={server.url()}", *TRAFFIC[:4], "--calibrate", "off",
        "--over", "rate=40,60", "--seeds", "1", "--no-html", "--out", "out", "--quiet",
    )  # fmt: skip
    runs = [load(f"out/points/rate={rate}/seed-0") for rate in (40, 60)]

    assert code in (0, 4), err
    assert (2, 10) == (_unmeasured(server), len(server.of("calm", measured=False)) - 2)
    assert 1 == sum(run.info.backend["probe"]["reused"] for run in runs)
    lengths = {n for run in runs for n in run.requests["prompt_tokens_server"].to_pylist()}
    assert {30} == lengths, "what the first run learned of lengths was lost"


@pytest.mark.nightly
def test_pairs_probe_once_for_each_format(
    scripted: Callable, run_here: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run of a pair is a process of its own, and would ask the server again."""
    monkeypatch.setattr("harness.experiments.compare.runner.LEAST_PAIRS", 2)  # the answer is of no interest here
    server = scripted(calm={}, other={})
    rest = f"{' '.join(TRAFFIC)} --no-html"
    sides = [f"bench run --backend openai:url={server.url(name)} {rest}" for name in ("calm", "other")]
    code, out, err = run_here("compare", "--pairs", "2", "--run", sides[0], "--run", sides[1], "--out", "out")
    runs = [load(f"out/pairs/{pair:02d}-seed{pair - 1}/{side}") for pair in (1, 2) for side in ("base", "head")]

    assert code in (0, 1, 4, 5), out + err
    assert [2, 2] == [_unmeasured(server, name) for name in ("calm", "other")]
    assert not any("--probed" in run.info.command for run in runs)
