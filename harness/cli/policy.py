"""`bench policy`: policies on the engine, on the simulator and on vLLM, with the same traffic."""

import click

from harness.cli._options import BOUNDS, COUNT, SEED, formats

_EPILOG = """
\b
Examples
  bench policy vllm-v0 sarathi
  bench policy vllm-v1:budget=256 fastgen --workload sharegpt --rate 1,2 --requests 100
  bench policy sarathi --replicas 2 --router round-robin,least-requests
      routers under one policy, on a cluster
  bench policy sarathi --vllm http://127.0.0.1:8000/v1
      and on a server of vLLM that was started with this policy (docs/guide/policy.md)

Custom policies and routers work the same way: a file in backends/serving/policies/ or routers/, or an installed package
(docs/guide/policy.md, docs/guide/router.md).
"""


@click.command("policy", short_help="Compare policies on the engine and the simulator.", epilog=_EPILOG)
@click.argument("policies", metavar="POLICY...", nargs=-1, required=True)
@click.option("--workload", default="uniform:prompt_max_tokens=256,output_max_tokens=64", show_default=True,
              metavar="NAME", help="Preset or lengths spec.")  # fmt: skip
@click.option("--rate", metavar="LIST", help="Mean rates of Poisson arrivals per second. Default: 0.5, 0.9 and 1.2 of "
              "the lowest capacity of the policies on the simulator.")  # fmt: skip
@click.option("--requests", metavar="N", help="Requests per run. Default: those of 4 s.")
@click.option("--slo", type=BOUNDS, default="ttft=0.1,tpot=20ms", show_default=True, metavar="BOUNDS",
              help="Latency objectives.")  # fmt: skip
@click.option("--seeds", type=COUNT, default=5, show_default=True, metavar="N", help="Runs at each rate, of which "
              "intervals need 5.")  # fmt: skip
@click.option("--seed", type=SEED, default=0, show_default=True, metavar="N", help="First seed.")
@click.option("--vllm", "servers", multiple=True, metavar="URL", help="A server of vLLM under the policy, measured "
              "too; once for each POLICY, in their order.")  # fmt: skip
@click.option("--replicas", metavar="N", help="A cluster of N replicas.")
@click.option("--prefill", metavar="SPEC", help="A cluster with prefill replicas: 2, or 2:policy=....")
@click.option("--decode", metavar="SPEC", help="And decode replicas.")
@click.option("--router", metavar="LIST", help="Router of the cluster; several are compared under a single POLICY.")
@click.option("--out", metavar="DIR", help="Folder of the runs. Default: a new one in bench-runs.")
@formats
def command(
    policies: tuple[str, ...], workload: str, rate: str | None, requests: str | None, slo: str, seeds: int, seed: int,
    servers: tuple[str, ...], replicas: str | None, prefill: str | None, decode: str | None, router: str | None,
    out: str | None, form: str,
) -> int:  # fmt: skip
    """Measure each POLICY on the built-in engine and on the simulator, with the same traffic at several rates.

    The simulator's step times are fitted to a separate run of the engine on this machine, with different traffic. A
    warning tells where engine and simulator disagree, a sentence which policies form the same batches. With --vllm
    the same traffic goes to vLLM too, whose scheduler asks the same policy. On a cluster (--replicas, or --prefill and
    --decode) routers are compared instead where --router names several.
    """
    from pathlib import Path

    from harness import compose
    from harness.cli import _terminal
    from harness.data.folder import new_folder
    from harness.errors import UsageError
    from harness.experiments.policies import SENDING, Traffic, check, measured
    from harness.experiments.sweep import axes

    if len(set(policies)) < len(policies):
        raise UsageError("A policy is named twice; name each once.")
    folder = Path(out) if out is not None else None
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"--out '{out}' is not empty; name a new folder.")
    rates = None if rate is None else axes.axis(axes.RATE, rate).values
    length = {"duration": SENDING} if requests is None else {"requests": requests}
    given = {"replicas": replicas, "prefill": prefill, "decode": decode, "router": router}
    cluster = {name: value for name, value in given.items() if value is not None}
    routers = () if router is None else axes.axis("router", router).values
    if len(routers) > 1:
        if len(policies) > 1 or servers:
            raise UsageError("Several routers are compared under one POLICY, without --vllm.")
        cluster["policy"] = policies[0]
        del cluster["router"]
    compared = routers if len(routers) > 1 else policies
    traffic = Traffic(
        {"workload": workload, "slo": slo, **length}, seed, seeds, rates, servers, cluster,
        "router" if len(routers) > 1 else "policy",
    )  # fmt: skip
    check(compared, traffic)
    for server in servers:  # one that is not there would end the command after minutes
        compose.find_server(server, None)
    info = measured(compared, traffic, folder or new_folder(Path("bench-runs") / "policy"), _terminal.note)
    _terminal.show(form, info)
    return info.exit_code
