"""`bench policy`: policies on the engine and on the simulator, with the same traffic."""

import click

from harness.cli._options import SEED, formats

_EPILOG = """
\b
Examples
  bench policy vllm-v0 sarathi
  bench policy vllm-v1:budget=256 fastgen --workload sharegpt --rate 2 --requests 100

Custom policies work the same way: a file in backends/serving/policies/ or an installed package (docs/guide/policy.md).
"""


@click.command("policy", short_help="Compare policies on the engine and the simulator.", epilog=_EPILOG)
@click.argument("policies", metavar="POLICY...", nargs=-1, required=True)
@click.option("--workload", default="uniform:prompt_max_tokens=256,output_max_tokens=64", show_default=True,
              metavar="NAME", help="Preset or lengths spec.")  # fmt: skip
@click.option("--rate", default="10", show_default=True, metavar="RPS", help="Mean rate of Poisson arrivals.")
@click.option("--requests", default="100", show_default=True, metavar="N", help="Requests per run.")
@click.option("--slo", default="ttft=0.1,tpot=20ms", show_default=True, metavar="BOUNDS", help="Latency objectives.")
@click.option("--seed", type=SEED, default=0, show_default=True, metavar="N", help="Random seed.")
@click.option("--out", metavar="DIR", help="Folder of the runs. Default: a new one in bench-runs.")
@formats
def command(
    policies: tuple[str, ...], workload: str, rate: str, requests: str, slo: str, seed: int, out: str | None, form: str
) -> int:
    """Measure each POLICY on the built-in engine and on the simulator, with the same traffic.

    The simulator's step times are fitted to a separate run of the engine on this machine, with different traffic.
    """
    from pathlib import Path

    from harness.cli import _terminal
    from harness.data.folder import new_folder
    from harness.errors import UsageError
    from harness.experiments.policies import Traffic, check, measured

    if len(set(policies)) < len(policies):
        raise UsageError("A policy is named twice; name each once.")
    folder = Path(out) if out is not None else None
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"--out '{out}' is not empty; name a new folder.")
    options = {"workload": workload, "rate": rate, "requests": requests, "slo": slo}
    traffic = Traffic(options, seed)
    check(policies, traffic)
    info = measured(policies, traffic, folder or new_folder(Path("bench-runs") / "policy"), _terminal.note)
    _terminal.show(form, info)
    return 0
