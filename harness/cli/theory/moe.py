"""`bench theory moe`, `experts` and `ping-pong`: tokens per expert, traffic, balance, disaggregation."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from statistics import fmean
from typing import Any

import click

from harness import catalog
from harness.catalog import Shape
from harness.cli._options import COUNT, DURATION, Value
from harness.cli.theory._options import counts, form_options, option, show
from harness.errors import UsageError
from harness.experiments.theory import tables
from harness.experiments.theory.kv import link_bytes_per_s
from harness.experiments.theory.moe import Experts, PingPong, Traffic, exact, slide
from harness.experiments.theory.tables import Line
from harness.values import duration_s


@click.command("moe", short_help="Tokens per expert, and cost of expert traffic.")
@option("--preset", type=click.Choice(["deepseek-v3"]), default="deepseek-v3", metavar="NAME",
        help="deepseek-v3: 256 routed experts, 8 per token, 7168 x 2048, FP8.")  # fmt: skip
@option("--gpu", "gpus", default="h800,h20", metavar="NAMES", help="GPUs (bench list hardware), comma-separated.")
@option("--local", type=COUNT, default=30, metavar="N", help="Sequences per GPU.")
@option("--inner", type=COUNT, default=7168, metavar="N", help="Hidden size of the model.")
@option("--columns", type=COUNT, default=2048, metavar="N", help="Width of an expert.")
@option("--experts", type=COUNT, default=256, metavar="N", help="Routed experts.")
@option("--top-k", type=COUNT, default=8, metavar="N", help="Routed experts per token.")
@option("--element-bytes", type=click.IntRange(1, 2), default=1, metavar="N", help="1: FP8, 2: BF16.")
@option("--link", default="50GBps", metavar="RATE", help="Bandwidth of expert parallelism, per GPU.")
@option("--tokens", type=COUNT, default=32, metavar="N", help="Tokens per GPU in one exchange.")
@form_options
def moe(
    preset: str, gpus: str, local: int, inner: int, columns: int, experts: int, top_k: int, element_bytes: int,
    link: str, tokens: int, form: str, out: str | None,
) -> int:  # fmt: skip
    """Tokens that make an expert compute-bound, and the number of GPUs to spread experts over.

    Mode 'slide' is an approximation (2M FLOP per byte, rounded up to tens), 'exact' the full formula. A second table
    has the cost of all-to-all exchanges without overlap.
    """
    if top_k > experts:
        raise UsageError(f"--top-k {top_k} is more than the {experts} --experts.")
    shape = Experts(inner, columns, experts, top_k, element_bytes)
    traffic = Traffic(tokens=tokens, targets=top_k + 1, link_bytes_per_s=link_bytes_per_s(link))
    names = [name.strip() for name in gpus.split(",")]
    ridges = {name: _ridge(name, element_bytes) for name in names}
    return show(tables.answer(
        "moe", {"preset": preset, "gpus": names, "local": local, "inner": inner, "columns": columns,
                "experts": experts, "top_k": top_k, "element_bytes": element_bytes, "link": link, "tokens": tokens},
        [f"{experts} routed experts of {inner} x {columns}, {top_k} a token, {local} sequences on each GPU."],
        [
            tables.table("Tokens an expert needs, and GPUs over which experts are spread",
                       [("GPU", "text"), ("mode", "text"), ("FLOP/B of the GPU", "number"), ("least M", "count"),
                        ("M", "count"), ("tokens in flight", "count"), ("GPUs", "number"), ("rounded up", "count"),
                        ("FLOP/B at M", "number")],
                       [row for name, ridge in ridges.items() for row in _plans(shape, name, ridge, local)]),
            tables.table("Exchanges of one GPU",
                       [("tokens", "count"), ("link", "bytes_per_s"), ("dispatch + combine", "s"), ("a layer", "s"),
                        (f"{traffic.layers} layers", "s"), ("at most", "tokens_per_s")],
                       [(tokens, traffic.link_bytes_per_s, traffic.exchange_s, traffic.layer_s, traffic.token_s,
                         1 / traffic.token_s)]),
        ],
        [f"Endless batches reach {shape.intensity(float('inf')):,.1f} FLOP/B; a GPU with more cannot be filled ('-').",
         ("Exchanges: 1 byte an element out, 2 back, 7,000 elements a token, to the routed experts and a shared one; "
         "a layer has two micro-batches, so two exchanges (after 'Insights into DeepSeek-V3').")],
    ), form, out)  # fmt: skip


def _ridge(gpu: str, element_bytes: int) -> float:
    found = catalog.hardware(gpu)
    if element_bytes == 1 and found.fp8_flops is None:
        raise UsageError(f"{gpu} has no FP8 tensor cores; use --element-bytes 2.")
    ridge: float = found.peak_flops(element_bytes) / found.bandwidth_bytes_per_s
    return ridge


def _plans(shape: Any, gpu: str, ridge: float, local: int) -> Iterator[tuple[Any, ...]]:

    plans = {"slide": slide(shape, ridge, local), "exact": exact(shape, ridge, local)}
    for mode, plan in plans.items():
        if plan is None:
            yield (gpu, mode, ridge, *(None,) * 6)
        else:
            yield (gpu, mode, ridge, plan.least, plan.rows, plan.tokens, plan.width, ceil(plan.width),
                   shape.intensity(plan.rows))  # fmt: skip


@click.command("experts", short_help="Load of GPUs with experts, and redundant experts.")
@option("--model", default="deepseek-v3-fp8", metavar="NAME", help="Mixture of experts (bench list models).")
@option("--tp", type=COUNT, default=4, metavar="N", help="GPUs of attention of one sequence.")
@option("--dp", type=COUNT, default=8, metavar="N", help="Groups of them; experts are spread over all tp x dp GPUs.")
@option("--redundant", type=counts("redundant experts", 100_000, 0), default="0,32", metavar="N",
        help="Redundant experts, comma-separated.")  # fmt: skip
@option("--copies", type=COUNT, default=1, metavar="N", help="Copies of every expert at least.")
@option("--fail", is_flag=True, help="Also the throughput after the failure of one GPU.")
@option("--shared/--no-shared", default=False, help="Place the shared expert like a routed one.")
@option("--tokens", type=COUNT, default=1024, metavar="N", help="Tokens per GPU in a step.")
@option("--skew", type=click.FloatRange(0, 5), default=1.01, metavar="X",
        help="Exponent of the power law of popularity; 0: all experts alike.")  # fmt: skip
@option("--seeds", type=click.IntRange(1, 100), default=5, metavar="N", help="Seeds of popularity and choices.")
@form_options
def experts(
    model: str, tp: int, dp: int, redundant: list[int], copies: int, fail: bool, shared: bool, tokens: int, skew: float,
    seeds: int, form: str, out: str | None,
) -> int:  # fmt: skip
    """The most loaded GPU over the mean of all GPUs that share the experts of a layer, in steps whose tokens choose
    experts at random; without balance, and with experts placed by the counters of the step before.

    The default is DeepSeek-V3's unit of prefill (32 GPUs); its unit of decode is --dp 80 --redundant 63 --shared
    --tokens 30 (320 GPUs).
    """
    from harness.experiments.theory.expert_load import ExpertUnit, failure, imbalance

    shape = Shape(tp, dp=dp, ep=tp * dp)
    units = [ExpertUnit(catalog.model(model), shape, one, shared, copies) for one in dict.fromkeys(redundant)]
    held = [unit.per_gpu for unit in units]  # refuses wrong ones before the first is drawn
    if tokens * shape.gpus > 1_000_000:
        raise UsageError(f"--tokens {tokens:,} on {shape.gpus:,} GPUs are more than 1,000,000 tokens a step.")
    rows = []
    for unit, per_gpu in zip(units, held, strict=True):
        found = [imbalance(unit, tokens * shape.gpus, skew, seed) for seed in range(seeds)]
        placed, hottest = [one.placed for one in found], [one.hottest for one in found]
        mean = fmean(placed)
        rows.append((unit.redundant, per_gpu, found[0].tokens, fmean(hottest), fmean(one.in_order for one in found),
                     mean, min(placed), max(placed), 1 - 1 / mean))  # fmt: skip
    failed = []
    for unit in units if fail else ():
        after = [failure(unit, tokens * shape.gpus, skew, seed) for seed in range(seeds)]
        losses = [one.loss for one in after if one.loss is not None]
        worst = [one.worst for one in after if one.worst is not None]
        failed.append((unit.redundant, fmean(one.stops for one in after), fmean(losses) if losses else None,
                       max(worst, default=None)))  # fmt: skip
    return show(tables.answer(
        "experts", {"model": model, "tp": tp, "dp": dp, "redundant": redundant, "copies": copies, "shared": shared,
                    "tokens": tokens, "skew": skew, "seeds": seeds},
        [f"{units[0].experts.routed} routed experts over {shape.gpus} GPUs, {tokens * shape.gpus:,} tokens a step."],
        [tables.table("Most loaded GPU over the mean",
                    [("redundant", "count"), ("experts a GPU", "count"), ("tokens an expert", "number"),
                     ("hottest", "count"), ("in order, none redundant", "ratio"), ("placed by load", "ratio"),
                     ("least", "ratio"), ("most", "ratio"), ("idle", "share")], rows),
         *([tables.table("One GPU fails",
                         [("redundant", "count"), ("GPUs whose failure stops all", "share"), ("loss", "share"),
                          ("largest loss", "share")], failed)] if fail else ())],
        [("Popularity is a model, not a measurement: drawn per seed from a power law, as aiconfigurator does. 'idle' "
          "is the share of a step in which the mean GPU waits for the most loaded one. Copies of an expert share its "
          "tokens evenly; after a failure the least loaded live copy takes a token; experts bound the throughput.")],
    ), form, out)  # fmt: skip


@click.command("ping-pong", short_help="Disaggregated attention and experts, with micro-batches.")
@option("--Ta", "ta", type=DURATION, default="1ms", metavar="TIME", help="Attention time per micro-batch and layer.")
@option("--Te", "te", type=DURATION, default="1ms", metavar="TIME", help="Expert time per micro-batch and layer.")
@option("--Tc", "several", type=Value(lambda text, name: [duration_s(one, name) for one in str(text).split(",")]),
        default="0.3ms", metavar="TIME", help="One-way transfer time, comma-separated.")  # fmt: skip
@option(
    "--m",
    "ms",
    type=counts("micro-batches", 1000),
    default="1..4",
    metavar="N",
    help="Micro-batches: 3, 1,2,3 or 1..4.",
)
@option("--layers", type=click.IntRange(1, 1000), default=56, metavar="N", help="Layers.")
@form_options
def ping_pong(
    ta: float, te: float, several: list[float], ms: list[int], layers: int, form: str, out: str | None
) -> int:
    """Decode step time with attention and experts on different GPUs (MegaScale-Infer).

    The formula (Ta + Te + 2 Tc) + Tf (m L - 1) is exact from m = 2 (1 + Tc / Tf) micro-batches on; the simulation
    beside it follows every micro-batch, and is longer with fewer.
    """
    rows = []
    for tc in several:
        one = PingPong(ta, te, tc, layers)
        shares = {m: one.busy_share(m) for m in {*ms, *(m - 1 for m in ms if m > 1)}}
        rows += [
            (m, tc, one.least, m >= one.least, one.formula_s(m), one.simulated_s(m), shares[m],
             shares[m] / shares[m - 1] if m > 1 else None)
            for m in ms
        ]  # fmt: skip
    return show(tables.answer(
        "ping-pong", {"attention_s": ta, "experts_s": te, "transfers_s": several, "layers": layers, "m": ms},
        [f"{layers} layers, {ta * 1e3:g} ms of attention and {te * 1e3:g} ms of experts a micro-batch and layer."],
        [tables.table("A decode step",
                    [("m", "count"), ("transfer", "s"), ("needs m of", "number"), ("hidden", "yes"), ("formula", "s"),
                     ("simulated", "s"), ("of the ideal", "share"), ("over m - 1", "ratio")], rows)],
        [("'of the ideal' is the share of the step in which the slower side works; 'over m - 1' the gain in throughput "
         "by the last micro-batch.")],
        [tables.Picture("A decode step by micro-batches", "micro-batches", "step (s)", tuple(_lines(rows)))],
    ), form, out)  # fmt: skip


def _lines(rows: list[tuple[Any, ...]]) -> Iterator[Line]:
    """For each transfer the formula, and the simulated steps over it."""
    for tc in dict.fromkeys(row[1] for row in rows):
        for column in (4, 5):
            points = tuple((row[0], row[column]) for row in rows if row[1] == tc)
            yield Line(f"transfer {tc * 1e3:g} ms", points, simulated=column == 5)


@click.command("afd", short_help="Attention and experts on different GPUs, beside colocated replicas.")
@option("--model", default="mixtral-8x22b", metavar="NAME", help="Mixture of experts (bench list models).")
@option("--gpu", default="a100-80g", metavar="NAME", help="GPU (bench list hardware).")
@option("--experts", "several", type=counts("experts", 1024), metavar="N",
        help="Routed experts of the same size, comma-separated. [default: the model's]")  # fmt: skip
@option("--context", type=COUNT, default=650, metavar="TOKENS", help="Context per sequence.")
@option("--itl", type=DURATION, default="150ms", metavar="TIME", help="Longest decode step.")
@option("--link", default="200Gbps", metavar="RATE", help="Network of a GPU, between attention and experts.")
@form_options
def afd(
    model: str, gpu: str, several: list[int] | None, context: int, itl: float, link: str, form: str, out: str | None
) -> int:
    """Decode tokens per second and GPU of the best deployment with attention and experts on different GPUs, and of the
    best colocated replica, both within --itl (MegaScale-Infer).

    The rule is the number of attention nodes that balances both sides, k1 E / (k3 K), for the chosen division.
    """
    from harness.experiments.theory.afd import Decode, colocated, deployments

    shape = catalog.model(model)
    first = Decode(shape, catalog.hardware(gpu), context, itl, link_bytes_per_s(link))
    least = first.experts.per_token
    rows, nodes = [], []
    for count in dict.fromkeys(several or [first.experts.routed]):
        if count < least:
            raise UsageError(f"--experts {count} are fewer than the {least} that a token of {model} visits.")
        decode = replace(first, model=replace(shape, experts=replace(first.experts, routed=count)))
        together, apart = colocated(decode), [*deployments(decode)]
        best = max(apart, key=lambda one: one.rate, default=None)
        rows.append((
            count,
            *((None,) * 3 if together is None
              else (f"({together.tp},{together.pp})", together.batch, together.rate)),
            *((None,) * 3 if best is None else (best.gpus, best.batch * best.m * best.nodes, best.rate)),
            None if together is None or best is None else best.rate / together.rate,
        ))  # fmt: skip
        nodes += [(count, one.tp_a, one.tp_e, one.m, one.batch, one.nodes, one.rule, one.rate)
                  for one in sorted(apart, key=lambda one: -one.rate)[:5]]  # fmt: skip
    return show(tables.answer(
        "afd", {"model": model, "gpu": gpu, "experts": [row[0] for row in rows], "context_tokens": context,
                "itl_s": itl, "link": link},
        [f"Decode of {model} on {gpu}, {context:,} tokens of context, a step within {itl * 1e3:g} ms."],
        [
            tables.table("Tokens per second and GPU",
                         [("experts", "count"), ("colocated (tp,pp)", "text"), ("batch", "count"),
                          ("colocated", "tokens_per_s"), ("GPUs", "count"), ("sequences", "count"),
                          ("apart", "tokens_per_s"), ("apart / colocated", "ratio")], rows),
            tables.table("Best number of attention nodes by division",
                         [("experts", "count"), ("tp of attention", "count"), ("tp of experts", "count"),
                          ("m", "count"), ("micro-batch", "count"), ("nodes", "count"), ("rule", "number"),
                          ("rate", "tokens_per_s")], nodes),
        ],
        [("Constants are those of the peaks; arithmetic and memory traffic add up for both. Only 3 or 4 micro-batches "
          "that hide the transfers count; '-': nothing fits, or none does. Tokens choose experts evenly.")],
    ), form, out)  # fmt: skip
