"""`bench run`: one run of a workload or a trace against a backend, with its verdict."""

from __future__ import annotations

import click

_EPILOG = """
\b
Examples
  bench run --workload chatbot --slo ttft=0.25,tpot=0.1
  bench run --workload chatbot --backend sim --model llama2-7b --hardware h100 --rate 8 --requests 4000
  bench run --trace azure_conv.csv --backend sim:model=opt-13b,hardware=a100-80g
  bench run --config bench-runs/chatbot-engine-20260101T120000Z

\b
Exit codes
  0 good; 1 attainment below --fail-under; 2 wrong usage; 3 the backend failed; 4 the run is not valid.
Ctrl-C once stops sending, waits for answers and reports; twice ends the run now. Both keep what was measured.
"""


@click.command("run", epilog=_EPILOG, short_help="Run a workload or a trace against a backend.")
@click.option("--workload", metavar="NAME", help="Preset or workload spec; chatbot when nothing is named.")
@click.option("--trace", metavar="FILE", help="Replay a trace file instead of a workload.")
@click.option("--reader", metavar="NAME", help="Format of the trace; found from its columns when left out.")
@click.option("--start", metavar="TIME", help="Begin of the part of the trace to replay (seconds, 5min, 1h).")
@click.option("--stop", metavar="TIME", help="End of the part of the trace to replay.")
@click.option("--limit", metavar="N", help="At most so many rows of the trace.")
@click.option("--slo", metavar="BOUNDS", help="Such as ttft=0.25,tpot=100ms,p99:e2e=30s; seconds without a unit.")
@click.option("--goal", metavar="SHARE", help="Share of requests that must keep the SLO (default 0.9).")
@click.option("--fail-under", metavar="SHARE", help="Exit code 1 when fewer requests keep the SLO.")
@click.option("--backend", metavar="SPEC", help="engine (default), sim, null, ... with arguments: sim:model=opt-13b.")
@click.option("--model", metavar="NAME", help="Model of the backend: a name (sim) or a folder (engine).")
@click.option("--hardware", metavar="NAME", help="GPU that sim simulates.")
@click.option("--latency", metavar="SPEC", help="Latency model of sim.")
@click.option("--policy", metavar="SPEC", help="What runs next on a replica: sarathi, vllm-v0, orca, static, ...")
@click.option("--router", metavar="SPEC", help="Which replica a request goes to.")
@click.option("--kv", metavar="SPEC", help="KV memory mode.")
@click.option("--replicas", metavar="N", help="Copies of the model.")
@click.option("--tp", metavar="N", help="GPUs that share one copy of the model.")
@click.option("--rate", metavar="RPS", help="Mean arrival rate in requests per second.")
@click.option("--arrivals", metavar="SPEC", help="When requests arrive: poisson, gamma:cv=2, constant, ...")
@click.option("--lengths", metavar="SPEC", help="Prompt and output tokens: sharegpt, fixed:prompt=512,output=64, ...")
@click.option("--content", metavar="SPEC", help="What is inside a prompt.")
@click.option("--requests", metavar="N", help="Stop after so many requests (default: the preset's).")
@click.option("--duration", metavar="TIME", help="Send requests that are due within this time (60s, 5min).")
@click.option("--seed", metavar="N", help="Seed of arrivals, lengths and content (default 0).")
@click.option("--drain", metavar="TIME", help="Longest wait for answers after the last departure (default 60s).")
@click.option("--config", metavar="FILE", help="TOML file (see bench init), or a run.json to repeat; options win.")
@click.option("--out", metavar="DIR", help="Folder of the run (default: a new one in bench-runs).")
@click.option("--json", "as_json", is_flag=True, help="Print run.json instead of the summary.")
@click.option("--quiet", is_flag=True, help="No progress and no notes; the summary is still printed.")
@click.option("--no-html", is_flag=True, help="Write no report.html.")
def command(
    config: str | None, out: str | None, as_json: bool, quiet: bool, no_html: bool, **options: str | None
) -> int:
    """Send a workload, or a trace, to a backend and tell how many requests kept the SLO.

    Every option but --config, --out, --json, --quiet and --no-html may stand in a TOML file too. The
    folder of the run holds run.json, requests.parquet, steps.parquet, schedule.parquet and report.html.
    """
    from harness import config as configuration
    from harness.cli import _terminal
    from harness.run import execute

    given = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
    file = configuration.read(config) if config is not None else None
    spec = configuration.run_spec(configuration.Given(given), file.given if file else None)
    repeats = None
    if file is not None and not any(option in given for option in configuration.SCHEDULE):
        repeats = file.schedule_sha256
    say = _terminal.note if not quiet else _terminal.nothing
    result = execute(spec, out=out, html=not no_html, quiet=quiet, repeats=repeats, say=say)
    _terminal.show("json" if as_json else "text", result.run)
    if result.outcome.error is not None:
        _terminal.complain(result.outcome.error)
    return result.exit_code
