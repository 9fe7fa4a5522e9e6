"""`bench run`: one run of a workload or a trace against a backend, with its verdict."""

from __future__ import annotations

import click

from harness.cli._sections import Sectioned

_SECTIONS = {
    "Traffic from a workload": ("workload", "rate", "arrivals", "lengths", "sessions", "prefixes", "content"),
    "Traffic from a trace instead": (
        "trace", "reader", "columns", "start", "stop", "limit", "where", "scale", "jitter", "turns",
    ),
    "How much of it": ("requests", "duration", "seed"),
    "What must be kept": ("slo", "goal", "fail-under"),
    "The system (all of its arguments: bench explain sim, bench explain engine)": (
        "backend", "model", "hardware", "tp", "replicas", "policy", "kv", "router", "latency",
    ),
    "A server elsewhere (bench explain openai)": ("header", "extra-body", "senders", "calibrate"),
    "The run and its folder": ("config", "out", "force", "drain", "as-json", "quiet", "no-html"),
}  # fmt: skip
_EPILOG = """
\b
Examples
  bench run --workload chatbot --slo ttft=0.25,tpot=0.1
      a minute of chat on the built-in engine: a small real model on this machine
  bench run --workload chatbot --backend sim --model llama2-7b --hardware h100 \\
            --rate 8 --requests 4000
      the same traffic, faster, on a simulated GPU; takes about a second
  bench run --trace azure_conv.csv --duration 5min --backend sim --slo ttft=1
      the first five minutes of a recorded trace
  bench run --config bench-runs/chatbot-engine-20260101T120000Z --rate 4
      an earlier run again, with another rate
  bench run --backend openai:url=http://127.0.0.1:8000/v1 --rate 4 --slo ttft=0.5
      traffic for a server: vLLM, SGLang, llama.cpp, bench serve, ...

\b
Values
  TIME    seconds, or 250ms, 60s, 5min, 1h
  BOUNDS  METRIC=TIME,...; ttft@long=2 for one class of traffic, p99:itl=0.2 for a
          percentile of the run; metrics: bench list metrics
  SHARE   0.9 or 90%
  SPEC    NAME or NAME:key=value,key=value; names: bench list, keys: bench explain NAME

\b
Exit codes
  0 good
  1 --fail-under: too few requests kept the SLO, or a percentile bound is broken
  2 wrong usage
  3 the backend failed
  4 the run is not valid, or was ended at once (Ctrl-C twice, SIGTERM) without --fail-under
  5 --fail-under: good so far, but the queue was growing, or the run was ended early; or the
    client's own error decides
  130 interrupted before the report

Ctrl-C once stops sending, waits for answers and reports; twice ends the run now. Both keep what was measured.
"""


@click.command(
    "run", cls=Sectioned, sections=_SECTIONS, epilog=_EPILOG, short_help="Run a workload or a trace against a backend."
)
@click.option("--workload", metavar="NAME", help="Preset (bench list presets) or lengths spec; default chatbot.")
@click.option("--trace", metavar="FILE", help="Replay this file with its own times and lengths.")
@click.option("--reader", metavar="NAME", help="Format of the file; default: found from its columns.")
@click.option("--columns", metavar="MAP", help="Columns of a plain trace: at=ts,prompt=in,output=out.")
@click.option("--start", metavar="TIME", help="Begin of the part to replay.")
@click.option("--stop", metavar="TIME", help="End of the part to replay.")
@click.option("--limit", metavar="N", help="At most so many rows.")
@click.option("--where", metavar="TEXT", help="Rows of the trace to keep: 'prompt_tokens<=4096,output_tokens>=1'.")
@click.option("--scale", metavar="SPEC", help="Load of the trace: compress:2, thin:0.5, superpose:3.")
@click.option("--jitter", metavar="TIME", help="Spread the stamps of the trace within TIME, or within its 'grain'.")
@click.option("--turns", metavar="WHEN", help="Later turns of the trace: recorded (default), or answered: not before.")
@click.option("--slo", metavar="BOUNDS", help="Such as ttft=0.25,tpot=100ms; default: the preset's.")
@click.option("--goal", metavar="SHARE", help="Share of requests that must keep the SLO (default 0.9).")
@click.option("--fail-under", metavar="SHARE", help="Exit code 1 when fewer requests keep the SLO (for scripts).")
@click.option("--backend", metavar="SPEC", help="engine (default), sim, null, openai:url=..., sim:model=opt-13b, ...")
@click.option("--model", metavar="NAME", help="sim: a name (bench list models); engine: a Hugging Face folder.")
@click.option("--hardware", metavar="NAME", help="sim: the GPU (bench list hardware).")
@click.option("--latency", metavar="SPEC", help="sim: how long a step takes; default roofline.")
@click.option("--policy", metavar="SPEC", help="What runs next on a replica: sarathi, vllm-v0, orca, static, ...")
@click.option("--router", metavar="SPEC", help="sim: which replica a request goes to.")
@click.option("--kv", metavar="SPEC", help="How KV memory is handed out; default paged.")
@click.option("--replicas", metavar="N", help="sim: copies of the model.")
@click.option("--tp", metavar="N", help="sim: GPUs that share one copy of the model.")
@click.option("--header", metavar="K=V", multiple=True, help="openai: a header of every request; may be repeated.")
@click.option("--extra-body", metavar="JSON", help="openai: fields of every request, over those of bench.")
@click.option("--senders", metavar="N", help="openai: processes that send; default auto: as many as the rate needs.")
@click.option(
    "--calibrate", metavar="TIME", help="openai: how long to measure this client before and after; default 2s, or off."
)
@click.option(
    "--rate",
    metavar="RPS",
    help="Mean rate in requests per second; default: that of the arrivals if they have one, else the preset's.",
)
@click.option("--arrivals", metavar="SPEC", help="When requests arrive: poisson, gamma:cv=2, constant, ...")
@click.option("--lengths", metavar="SPEC", help="Prompt and output tokens: sharegpt, fixed:prompt=512,output=64, ...")
@click.option(
    "--sessions", metavar="SPEC", help="Turns that follow the answers: burstgpt, fixed:turns=3,think=10s, ..."
)
@click.option("--prefixes", metavar="SPEC", help="Prefixes that requests share: shared:count=10,tokens=512,zipf=1.")
@click.option("--content", metavar="SPEC", help="What is inside a prompt; default tokens (random token ids).")
@click.option("--requests", metavar="N", help="Send so many requests; default: the preset's, a whole trace.")
@click.option("--duration", metavar="TIME", help="Send what is due within this time; a trace on a real system: 60s.")
@click.option("--seed", metavar="N", help="Seed of arrivals, lengths and content (default 0).")
@click.option(
    "--drain",
    metavar="TIME",
    help="Longest wait for answers after the last departure (default 60s; openai: its timeout; no effect on sim).",
)
@click.option("--config", metavar="FILE", help="TOML file (see bench init), or a run.json to repeat; options win.")
@click.option("--out", metavar="DIR", help="Folder of the run (default: a new one in bench-runs).")
@click.option("--force", is_flag=True, help="Replace the run that --out holds.")
@click.option("--json", "as_json", is_flag=True, help="Print run.json instead of the summary.")
@click.option("--quiet", is_flag=True, help="No progress and no notes; the summary is still printed.")
@click.option("--no-html", is_flag=True, help="Write no report.html.")
def command(
    config: str | None,
    out: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
    no_html: bool,
    header: tuple[str, ...],
    **options: str | None,
) -> int:
    """Send a workload, or a trace, to a backend and tell how many requests kept the SLO.

    The folder of the run holds run.json, requests.parquet, steps.parquet, schedule.parquet and report.html.
    Every option but --config, --out, --force, --json, --quiet and --no-html may stand in a TOML file too (bench init).
    """
    from harness import config as configuration
    from harness.cli import _terminal
    from harness.run import execute, why

    given = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
    if header:
        given["header"] = "\n".join(header)
    file = configuration.read(config) if config is not None else None
    spec = configuration.run_spec(configuration.Given(given), file.given if file else None)
    repeats = None
    if file is not None and not any(option in given for option in configuration.SCHEDULE):
        repeats = file.schedule_sha256
    say = _terminal.note if not quiet else _terminal.nothing
    result = execute(spec, out=out, html=not no_html, quiet=quiet, repeats=repeats, force=force, give_way=True, say=say)
    _terminal.show("json" if as_json else "text", result.run)
    if result.outcome.error is not None:
        _terminal.complain(result.outcome.error)
    elif (reason := why(result.exit_code, result.run.info, result.outcome, spec.fail_under)) is not None:
        _terminal.complain(reason)
    return result.exit_code
