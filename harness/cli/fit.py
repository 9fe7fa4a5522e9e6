"""`bench fit`: a latency model from measurements."""

import math
from typing import Any

import click
from click.core import ParameterSource

from harness import values
from harness.cli._options import COUNT, SEED, Value, formats, wait
from harness.errors import UsageError
from harness.experiments.fit.fit_json import FitAnswer

OWN = {
    "--requests": ("backend",),
    "--url": ("users", "most_tokens", "wait"),
    "--latency operators": ("model", "hardware", "tp"),
}
"""Options that only one kind of measurements, or one latency model, has a use for."""

_EPILOG = """
\b
Examples
  bench fit --steps bench-runs/NAME --latency mixed --out mine.toml
  bench run --backend sim --latency file:mine.toml
  bench fit --requests results.csv --backend sim:policy=vllm-v0 --latency linear --out mine.toml
  bench fit --url http://127.0.0.1:8000/v1 --latency linear --out mine.toml
"""


def _users(value: object, name: str) -> tuple[int, ...]:
    return tuple(values.count(part, name) for part in str(value).split(","))


@click.command("fit", short_help="Fit a latency model to measurements.", epilog=_EPILOG)
@click.option("--steps", multiple=True, metavar="RUN|TABLE",
              help="Run folder with steps, or a table (parquet, CSV) with prefill_tokens (n_pf), decode_seqs (B), "
              "context_tokens (ctx) and seconds. Repeatable.")  # fmt: skip
@click.option("--requests", multiple=True, metavar="RUN|TABLE",
              help="Per-request results instead: a run, another tool's file, or a table with arrival_s, prompt_tokens, "
              "output_tokens, ttft_s, tpot_s (or _ms). Repeatable.")  # fmt: skip
@click.option("--url", metavar="URL|SPEC",
              help="A live endpoint instead, probed for some seconds: its address, or a backend such as "
              "openai:url=...,model=... or engine.")  # fmt: skip
@click.option("--users", type=Value(_users), default="1,2,4,8", show_default=True, metavar="N,...",
              help="--url: concurrency levels.")  # fmt: skip
@click.option("--most-tokens", type=click.IntRange(min=32), default=1024, show_default=True, metavar="N",
              help="--url: longest prompt.")  # fmt: skip
@wait
@click.option("--backend", default="sim", show_default=True, metavar="SPEC",
              help="--requests: simulator with the policy and KV memory of the measured system.")  # fmt: skip
@click.option("--latency", default="mixed", show_default=True, metavar="NAME",
              help="Model to fit: linear, mixed, operators (measured kernels) or table.")  # fmt: skip
@click.option("--out", metavar="FILE", help="Write the model to FILE.toml, for --latency file:FILE.toml.")
@click.option("--model", default="opt-13b", show_default=True, metavar="NAME", help="operators: the measured model.")
@click.option("--hardware", default="a100-80g", show_default=True, metavar="NAME", help="operators: GPU it ran on.")
@click.option("--tp", type=COUNT, default=1, show_default=True, metavar="N", help="operators: number of GPUs.")
@click.option("--fix", multiple=True, metavar="NAME=VALUE", help="Fix a known constant. Repeatable.")
@click.option("--seed", type=SEED, default=1, show_default=True, metavar="N", help="Random seed of the held-out rows.")
@formats
def command(form: str, **given: Any) -> int:
    """Fit a latency model for the simulator.

    A fifth of the rows is held out to score the fit. Each constant is reported with its 95 % interval; a constant that
    the rows cannot identify is an error.
    """
    from harness.cli import _terminal

    _terminal.show(form, _answer(**given))
    return 0


def _answer(
    *, steps: tuple[str, ...], requests: tuple[str, ...], url: str | None, users: tuple[int, ...], most_tokens: int,
    wait: float | None, backend: str, latency: str, out: str | None, model: str, hardware: str, tp: int,
    fix: tuple[str, ...], seed: int,
) -> FitAnswer:  # fmt: skip
    from pathlib import Path

    from harness.cli import _terminal
    from harness.experiments.fit.answer import FitOptions, from_endpoint, from_requests, from_steps
    from harness.experiments.fit.forms import System
    from harness.experiments.fit.probe import Probe
    from harness.options import RunSpec
    from harness.spec import parse

    query = FitOptions(latency, System(model, hardware, tp), _fixed(fix), seed)
    path = None if out is None else Path(out)
    if path is not None and path.suffix != ".toml":
        raise UsageError(f"--out must name a .toml file, got '{out}'.")
    sources = [name for name, source in (("--steps", steps), ("--requests", requests), ("--url", url)) if source]
    if len(sources) != 1:
        what = f"{' and '.join(sources)} are given at once" if sources else "Nothing to fit"
        raise UsageError(f"{what}: name measurements with one of --steps, --requests and --url.")
    _refuse_what_would_be_ignored(sources[0], latency)
    if url is not None:
        server = values.backend(url, "--url")
        _terminal.await_servers([RunSpec(backend=server)], wait, _terminal.note)
        return from_endpoint(server, Probe(users, most_tokens), query, path, _terminal.note)
    if requests:
        if parse(backend).name != "sim":
            raise UsageError(f"--backend must be the simulator, such as sim:policy=sarathi, got '{backend}'.")
        if "latency" in parse(backend).args:
            raise UsageError(f"What is fitted is named by --latency; leave latency out of --backend {backend}.")
        return from_requests(requests, query, backend, path)
    return from_steps(steps, query, path)


def _refuse_what_would_be_ignored(source: str, latency: str) -> None:
    context = click.get_current_context()
    for owner, names in OWN.items():
        if owner in (source, f"--latency {latency}"):
            continue
        for name in names:
            if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
                raise UsageError(f"--{name.replace('_', '-')} belongs to {owner}; leave it out.")


def _fixed(given: tuple[str, ...]) -> dict[str, float]:
    fixed = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise UsageError(f"--fix must be NAME=VALUE with a number from 0 on, such as seq_s=0, got '{text}'.")
        fixed[name.strip()] = number
    return fixed
