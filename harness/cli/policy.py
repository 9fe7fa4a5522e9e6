"""`bench policy`: policies on the engine and on the simulator, with the same traffic."""

import click

_EPILOG = """
\b
For example
  bench policy vllm-v0 sarathi
  bench policy vllm-v1:budget=256 fastgen --workload sharegpt --rate 2 --requests 100

A policy of your own, once its file lies in backends/serving/policies/ or its package is installed, goes by its name
too: docs/guide/policy.md.
"""


@click.command("policy", short_help="A policy on engine and simulator, side by side.", epilog=_EPILOG)
@click.argument("policies", metavar="POLICY...", nargs=-1, required=True)
@click.option("--workload", default="uniform:prompt_max_tokens=256,output_max_tokens=64", show_default=True,
              metavar="NAME", help="Preset or lengths spec.")  # fmt: skip
@click.option("--rate", default="10", show_default=True, metavar="RPS", help="Mean rate of Poisson arrivals.")
@click.option("--requests", default="100", show_default=True, metavar="N", help="Requests of each run.")
@click.option("--slo", default="ttft=0.1,tpot=20ms", show_default=True, metavar="BOUNDS", help="What must be kept.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the traffic.")
@click.option("--out", metavar="DIR", help="Folder of the runs (default: a new one in bench-runs).")
@click.option("--format", "form", default="text", show_default=True, metavar="NAME", help="text, markdown or json.")
def command(
    policies: tuple[str, ...], workload: str, rate: str, requests: str, slo: str, seed: int, out: str | None, form: str
) -> int:
    """Measure each POLICY on the built-in engine and on the simulator, under the same traffic.

    The simulator gets the step times of this machine's engine from a run of its own, with other traffic.
    """
    from pathlib import Path

    from harness.cli import _terminal
    from harness.data.folder import new_folder
    from harness.errors import UsageError
    from harness.experiments.policies import Traffic, check, measured

    if form not in ("text", "markdown", "json"):
        raise UsageError(f"--format must be text, markdown or json, got '{form}'.")
    if len(set(policies)) < len(policies):
        raise UsageError("A policy is named twice; name each once.")
    folder = Path(out) if out is not None else None
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"--out '{out}' is not empty; name a new folder.")
    options = {"workload": workload, "rate": rate, "requests": requests, "slo": slo}
    traffic = Traffic(options, seed)
    check(policies, traffic)
    info = measured(policies, traffic, folder or new_folder(Path("bench-runs") / "policy"), _terminal.note)
    _terminal.tell(form, info)
    return 0
