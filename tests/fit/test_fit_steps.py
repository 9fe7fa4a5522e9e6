"""`bench fit --steps`: constants come back, errors are those of rows that were held out, and blind rows are refused."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest

from backends.sim import Sim
from harness import registry
from harness.api import Request
from harness.cli import main
from harness.data import codec
from harness.data.records import to_table
from harness.errors import UsageError
from harness.experiments.fit.answer import FitOptions, from_steps
from harness.experiments.fit.fit_json import FitAnswer
from harness.experiments.fit.forms import System, fit
from harness.experiments.fit.solve import pieces, scores, split
from harness.experiments.fit.steps import Rows, pairs_of_run, read
from reports.answers import fit as report

TRUE = {
    "linear": "linear:base=8ms,prefill_token=90us,decode_seq=30us,context_token=2e-7,prefill_token_squared=4e-9",
    "mixed": "mixed:yi-34b-tp2,seq=20us",
    "operators": "operators:scale=1.2,prefill_scale=1.5,overhead_s=2e-3,seq_s=2e-5,launch_s=0",
    "table": "table:yi-34b-tp2",
}
LLAMA = System("llama3-70b", "h100", 4)


def measured(latency: str, count: int = 900, noise: float = 0.0) -> Rows:
    """Steps of many loads, timed by a latency model."""
    rng = np.random.default_rng(5)
    system = dataclasses.asdict(LLAMA) if latency == "operators" else {}
    model = registry.make("latency", TRUE[latency], **system)
    prompts = rng.random(count) < 0.4
    tokens = np.where(prompts, rng.integers(16, 4000, count), 0)
    stored = np.where(prompts & (rng.random(count) < 0.3), rng.integers(1, 4000, count), 0)
    seqs = rng.integers(1, 80, count)
    context = seqs * rng.integers(50, 3000, count)
    times = [model.step_s([(n, p)] if n else (), b, c) for n, p, b, c in zip(
        tokens.tolist(), stored.tolist(), seqs.tolist(), context.tolist(), strict=True)]  # fmt: skip
    seconds = np.array(times) * rng.normal(1, noise, count)
    return Rows(*(x.astype(float) for x in (tokens, seqs, context, tokens * (tokens + 2 * stored))), seconds)


def simulated(policy: str) -> Sim:
    return Sim(model="opt-13b", latency=TRUE["linear"], policy=policy)


@pytest.mark.parametrize("latency", ["linear", "mixed", "operators"])
def test_constants_come_back_from_steps_that_they_made(latency):
    """A fit that misses the constants of perfect data would miss those of a machine."""
    fitted = fit(latency, measured(latency), LLAMA, {})
    model = registry.make("latency", TRUE[latency], **(dataclasses.asdict(LLAMA) if latency == "operators" else {}))

    for name in fitted.plus_minus:
        true = getattr(model, name) if getattr(model, name) is not None else _named(latency, name)
        assert true == pytest.approx(fitted.arguments[name], rel=2e-3)


def _named(latency: str, name: str) -> float:
    from backends.latency._shared import named

    return float(named(f"{latency}.toml", "yi-34b-tp2").get(name, 0.0))


def test_steps_that_do_not_tell_a_constant_leave_it_as_it_was():
    """Decodes alone know nothing of prompts: a fitted factor of these would be invented."""
    rows = measured("operators")
    fitted = fit("operators", rows.take(rows.tokens == 0), LLAMA, {})

    assert "prefill_scale" not in fitted.arguments
    assert "No row tells prefill_scale" in fitted.left_out["prefill_scale"]
    assert 1.2 == pytest.approx(fitted.arguments["scale"], rel=2e-3)


def test_intervals_hold_the_constants_of_noisy_steps():
    """An interval that is too narrow would promise what the rows do not know."""
    fitted = fit("linear", measured("linear", noise=0.05), System(), {})
    model = registry.make("latency", TRUE["linear"])
    inside = [abs(getattr(model, name) - fitted.arguments[name]) <= half for name, half in fitted.plus_minus.items()]

    assert sum(inside) >= 4
    assert all(half < 0.2 * fitted.arguments[name] for name, half in fitted.plus_minus.items())


def test_intervals_of_physical_parts_hold_them_too():
    """Columns of other orders of magnitude must not make an interval look narrow."""
    fitted = fit("operators", measured("operators", noise=0.05), LLAMA, {})

    for name, true in {"scale": 1.2, "prefill_scale": 1.5, "seq_s": 2e-5}.items():
        assert true == pytest.approx(fitted.arguments[name], abs=fitted.plus_minus[name])
    assert 0.001 < fitted.plus_minus["scale"] < 0.1


@pytest.mark.parametrize("latency", ["linear", "mixed", "operators", "table"])
def test_a_run_becomes_a_file_that_the_simulator_reads(tmp_path, latency, capsys):
    """From steps to `--latency file:`: the way of everybody who has a machine."""
    rows = measured(latency)
    table = tmp_path / "steps.csv"
    names = "n_pf,B,ctx,pairs,seconds"
    np.savetxt(table, np.stack(rows.columns, axis=1), delimiter=",", header=names, comments="", fmt="%.17g")
    system = ["--model", LLAMA.model, "--hardware", LLAMA.hardware, "--tp", "4"] if latency == "operators" else []

    code = main(["fit", "--steps", str(table), "--latency", latency, *system, "--out", str(tmp_path / "x.toml")])

    assert code == 0
    assert f"Latency model '{latency}' fitted to steps" in capsys.readouterr().out
    model = registry.make("latency", f"file:{tmp_path}/x.toml", model=LLAMA.model, hardware=LLAMA.hardware, tp=4)
    assert scores(rows, model, 1)[0].mean < 0.03


@pytest.mark.parametrize("policy", ["vllm-v0", "sarathi"])
def test_prompts_are_found_again_in_their_steps(policy):
    """The square term of attention would be fitted to pieces that never ran."""
    sim = simulated(policy)
    records = list(sim.simulate([Request(i, 0.05 * i, 100 + 37 * (i % 40), 5 + i % 9) for i in range(60)]))
    steps = sim.steps_table()
    columns = {name: steps[name].to_numpy() for name in steps.column_names}
    pairs = pairs_of_run(columns, to_table(records))
    model = registry.make("latency", TRUE["linear"])
    rows = zip(*(columns[n].tolist() for n in ("prefill_tokens", "decode_seqs", "context_tokens")), pairs, strict=True)

    predicted = [model.step_s(pieces(n, p), b, c) for n, b, c, p in rows]

    assert np.isfinite(pairs).all()
    assert (columns["end_s"] - columns["start_s"]).tolist() == pytest.approx(predicted, rel=1e-9)


def test_a_step_that_is_not_understood_is_not_guessed():
    """A preempted prompt runs twice; laying it once would shift all that follow."""
    columns = {"replica": np.zeros(4, int), "prefill_tokens": np.array([10, 25, 10, 8]),
               "start_s": np.arange(4.0), "end_s": np.arange(4.0) + 1}  # fmt: skip
    requested = [(10, 0.0, 1.0), (20, 1.0, 2.0), (8, 3.0, 4.0)]
    records = {"replica": np.zeros(3, int), "prompt_tokens": np.array([n for n, _, _ in requested]),
               "prefill_start_s": np.array([s for _, s, _ in requested]),
               "prefill_end_s": np.array([e for _, _, e in requested])}  # fmt: skip

    pairs = pairs_of_run(columns, pa.table(records))

    assert [100.0, 64.0] == pairs[[0, 3]].tolist()
    assert np.isnan(pairs[1:3]).all()


def test_the_steps_of_a_stored_run_and_of_all_below_a_folder_are_read(tmp_path, capsys):
    """Engine runs at several rates are one calibration."""
    run = ["run", "--workload", "chatbot", "--backend", "sim", "--latency", TRUE["linear"], "--policy", "vllm-v0",
           "--requests", "40", "--no-html", "--quiet", "--out"]  # fmt: skip
    assert main([*run, str(tmp_path / "runs" / "a"), "--rate", "2"]) == 0
    assert main([*run, str(tmp_path / "runs" / "b"), "--rate", "5", "--seed", "2"]) == 0
    capsys.readouterr()

    assert main(["fit", "--steps", str(tmp_path / "runs"), "--latency", "linear", "--format", "json"]) == 0
    info = json.loads(capsys.readouterr().out)
    found = {row["name"]: row["value"] for row in info["constants"]}

    assert info["rows"] == sum(len(read([tmp_path / "runs" / name])) for name in "ab")
    assert {"base_s": 8e-3, "prefill_token_s": 9e-5, "decode_seq_s": 3e-5, "context_token_s": 2e-7,
            "prefill_token_squared_s": 4e-9} == pytest.approx(found, rel=1e-3)  # fmt: skip


def test_a_decode_replica_is_idle_between_requests(tmp_path):
    """All its steps have decodes, so that the time without any request would be fitted as time of its steps."""
    apart = ["--prefill", "2", "--decode", "1", "--latency", "linear:base=8ms", "--rate", "2", "--requests", "60"]
    main(["run", "--backend", "sim", *apart, "--out", str(tmp_path / "run"), "--no-html", "--quiet"])
    rows = read([tmp_path / "run"])

    assert len(rows) > 500
    assert rows.seconds == pytest.approx(0.008)


def test_held_out_rows_are_not_seen():
    """An error on rows that the fit saw flatters it."""
    rows = measured("linear", 1000)

    seen, unseen = split(rows, 0.25, 3)

    assert 12 * 20 == len(unseen)
    assert not {*seen.seconds.tolist()} & {*unseen.seconds.tolist()}
    assert split(rows, 0.25, 3)[1].seconds.tolist() == unseen.seconds.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seqs": lambda r: r.seqs * 0 + 4, "context": lambda r: r.seqs * 0 + 4000}, "do not tell"),
        ({"tokens": lambda r: r.tokens * 0, "pairs": lambda r: r.pairs * 0}, "No row tells prefill_token_s"),
        ({"context": lambda r: r.seqs * 100}, "do not tell decode_seq_s and context_token_s apart"),
    ],
)
def test_rows_that_do_not_tell_a_constant_are_refused(change, message):
    """A constant that nothing measured would decide capacity at another load."""
    rows = measured("linear")
    columns = {name: change.get(name, lambda r, n=name: getattr(r, n))(rows) for name in
               ("tokens", "seqs", "context", "pairs", "seconds")}  # fmt: skip

    with pytest.raises(UsageError) as result:
        fit("linear", Rows(**columns), System(), {})

    assert message in str(result.value)


def test_a_constant_that_is_given_need_not_be_identified_by_the_rows():
    """Who knows that a term is nothing should not have to measure it."""
    rows = measured("linear")
    same = Rows(rows.tokens, rows.seqs, rows.seqs * 100, rows.pairs, rows.seconds)

    fitted = fit("linear", same, System(), {"context_token_s": 0.0})

    assert 0.0 == fitted.arguments["context_token_s"]
    assert "context_token_s" not in fitted.plus_minus


def test_unknown_pieces_leave_the_square_term_out(tmp_path):
    """A table of four columns cannot tell attention within a prompt; the answer says so."""
    rows = measured("linear")
    columns = np.stack([rows.tokens, rows.seqs, rows.context, rows.seconds], axis=1)
    np.savetxt(tmp_path / "t.csv", columns, delimiter=",", header="n_pf,B,ctx,seconds", comments="", fmt="%.17g")

    info = from_steps([str(tmp_path / "t.csv")], FitOptions("linear"))

    assert "prefill_token_squared_s" in info.left_out
    assert "prefill_token_squared_s" not in {row.name for row in info.constants}
    assert ["all", "decodes alone", "with prompts"] == [row.kind for row in info.unseen]


def test_a_report_says_how_sure_each_constant_is():
    """A constant that the rows hardly tell, and one that was given, would look like measured ones."""
    row = {"kind": "all", "rows": 20, "mean": 0.051, "p90": 0.1, "bias": -0.02}
    constants = [("base_s", 0.01, 0.02, False), ("prefill_token_s", 1e-4, 1e-6, False), ("seq_s", 0.0, None, True)]
    names = ("name", "value", "plus_minus", "given")
    info = {
        "latency": "table", "what": "steps", "from": ["a.csv"], "seed": 1, "seen_rows": 80, "unseen_rows": 20,
        "left_out_rows": 3, "constants": [dict(zip(names, one, strict=True)) for one in constants],
        "points": {"decode": [[b, b * 100, 0.01 * b] for b in range(1, 11)]}, "seen": [row], "unseen": [row],
        "left_out": {"context_token_s": "too few rows"}, "out": None,
        "versions": {}, "system": {}, "holdout": 0.2, "rows": 100, "file": "",
    }  # fmt: skip
    document = report.document(codec.of(FitAnswer, info))

    assert "Mean error 5.1% on 20 steps held out of 100 (seed 1)." == document.findings[0].text
    assert ["context_token_s is left out: too few rows.", "Intervals hold 0: base_s."] == [
        warning.message for warning in document.warnings
    ]
    constants, points = document.sections[0].blocks
    assert [("0.01", "0.02", "s"), ("0.0001", "1e-06", "s/token"), ("0", "given", "s/sequence")] == [
        cells[1:] for cells in constants.rows
    ]
    assert [("1", "10 ms"), ("3", "30 ms"), ("6", "60 ms"), ("8", "80 ms"), ("10", "100 ms")] == list(points.rows)
    assert "Nothing is written; --out FILE.toml stores the model." in document.findings[0].notes


def test_a_wrong_fit_is_reported_in_a_sentence(tmp_path, refusals):
    """The way out should be in the message."""
    (tmp_path / "table.csv").write_text("n_pf,B,ctx,seconds\n1,2,3,0.1\n0,2,5,0.1\n")
    (tmp_path / "broken.csv").write_text("n_pf,B,seconds\n1,2,0.1\n")
    (tmp_path / "empty.csv").write_text("n_pf,B,ctx,seconds\n0,0,0,0\n")
    (tmp_path / "twice.csv").write_text("n_pf,n_pf,B,seconds\n1,2,3,4\n")
    (tmp_path / "starts.csv").write_text("n_pf,B,ctx,start_s\n1,2,3,4\n")
    rows = (f"{i % 7},{1 + i % 5},{100 * i},0.{1 + i}" for i in range(20))
    (tmp_path / "good.csv").write_text("\n".join(["n_pf,B,ctx,seconds", *rows]))

    refusals("wrong-steps.txt")


def test_the_answer_tells_errors_on_seen_and_unseen_rows(tmp_path, capsys):
    """Only the error on unseen rows says how far the model can be trusted."""
    rows = measured("linear", noise=0.02)
    table = tmp_path / "steps.csv"
    np.savetxt(table, np.stack(rows.columns, axis=1), delimiter=",", header="n_pf,B,ctx,pairs,seconds", comments="")

    assert main(["fit", "--steps", str(table), "--latency", "linear", "--format", "json"]) == 0
    info = json.loads(capsys.readouterr().out)

    assert ("fit", 900) == (info["kind"], info["rows"])
    assert ["all", "decodes alone", "with prompts"] == [row["kind"] for row in info["unseen"]]
    assert all(0.005 < row["mean"] < 0.03 for row in info["unseen"])
    assert 5 == len(info["constants"])
