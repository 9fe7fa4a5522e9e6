"""The options that say what a run is: `bench run` has them, and every command that makes runs of its own.

A command whose many options are shown in groups, with a line about each group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from harness.options import Given


Function = TypeVar("Function", bound=Callable[..., Any])

SECTIONS = {
    "Traffic from a workload": ("workload", "rate", "arrivals", "lengths", "sessions", "prefixes", "content"),
    "Traffic from a trace instead": (
        "trace", "reader", "columns", "start", "stop", "limit", "where", "scale", "jitter", "turns",
    ),
    "How much of it": ("requests", "duration", "warmup", "seed"),
    "What must be kept": ("slo", "goal", "fail-under", "max-failed"),
    "The system (all of its arguments: bench explain sim, bench explain engine)": (
        "backend", "model", "hardware", "latency", "policy", "kv", "admission", "preempt", "prefix-cache", "speculate",
    ),
    "Several GPUs (sim)": (
        "replicas", "tp", "pp", "router", "prefill", "decode", "handoff", "link",
    ),
    "A server elsewhere (bench explain openai)": ("header", "extra-body", "output-lengths", "senders", "calibrate"),
}  # fmt: skip

_ALL = (
    click.option("--workload", metavar="NAME", help="Preset (bench list presets) or lengths spec; default chatbot."),
    click.option("--trace", metavar="FILE", help="Replay this file with its own times and lengths."),
    click.option("--reader", metavar="NAME", help="Format of the file; default: found from its columns."),
    click.option("--columns", metavar="MAP", help="Columns of a plain trace: at=ts,prompt=in,output=out."),
    click.option("--start", metavar="TIME", help="Begin of the part to replay."),
    click.option("--stop", metavar="TIME", help="End of the part to replay."),
    click.option("--limit", metavar="N", help="At most so many rows."),
    click.option("--where", metavar="TEXT", help="Rows of the trace to keep: 'prompt_tokens<=4096,output_tokens>=1'."),
    click.option("--scale", metavar="SPEC", help="Load of the trace: compress:2, thin:0.5, superpose:3."),
    click.option("--jitter", metavar="TIME", help="Spread the stamps of the trace within TIME, or within its 'grain'."),
    click.option(
        "--turns", metavar="WHEN", help="Later turns of the trace: recorded (default), or answered: not before."
    ),
    click.option("--slo", metavar="BOUNDS", help="Such as ttft=0.25,tpot=100ms; default: the preset's."),
    click.option(
        "--warmup",
        metavar="CUT",
        help="What is sent first and not measured: mser5 (found), 30s, 200 (requests), none (default).",
    ),
    click.option("--goal", metavar="SHARE", help="Share of requests that must keep the SLO (default 0.9)."),
    click.option("--fail-under", metavar="SHARE", help="Exit code 1 when fewer requests keep the SLO (for scripts)."),
    click.option(
        "--max-failed",
        metavar="SHARE",
        help="Exit code 3 when more requests fail for another reason than load (default 1%).",
    ),
    click.option(
        "--backend", metavar="SPEC", help="engine (default), sim, null, openai:url=..., sim:model=opt-13b, ..."
    ),
    click.option("--model", metavar="NAME", help="sim: a name (bench list models); engine: a Hugging Face folder."),
    click.option("--hardware", metavar="NAME", help="sim: the GPU (bench list hardware)."),
    click.option("--latency", metavar="SPEC", help="sim: how long a step takes; default roofline."),
    click.option("--policy", metavar="SPEC", help="What runs next on a replica: sarathi, vllm-v0, orca, static, ..."),
    click.option("--router", metavar="SPEC", help="sim: which replica a request goes to."),
    click.option("--kv", metavar="SPEC", help="How KV memory is handed out; default paged."),
    click.option("--replicas", metavar="N", help="sim: copies of the model."),
    click.option("--tp", metavar="N", help="sim: GPUs that share one copy of the model."),
    click.option("--pp", metavar="N", help="sim: pipeline stages of one copy of the model."),
    click.option("--admission", metavar="SPEC", help="Whom memory admits: fcfs (default), past-future, ..."),
    click.option("--preempt", metavar="HOW", help="Where memory runs short: recompute (default) or swap."),
    click.option("--prefix-cache", metavar="ON", help="on: prompts that begin alike share KV memory; default off."),
    click.option("--speculate", metavar="SPEC", help="Drafts that one step verifies: k=4,alpha=0.7."),
    click.option("--prefill", metavar="SPEC", help="sim: replicas that prefill only: 2, or 2:tp=2,pp=1."),
    click.option("--decode", metavar="SPEC", help="sim: replicas that decode only: 1, or 1:tp=1,pp=2."),
    click.option("--handoff", metavar="HOW", help="sim: who moves KV from prefill to decode: pull (default) or push."),
    click.option("--link", metavar="RATE", help="sim: what the KV crosses: nvlink (default), 25Gbps, 600GBps, ..."),
    click.option("--header", metavar="K=V", multiple=True, help="openai: a header of every request; may be repeated."),
    click.option("--extra-body", metavar="JSON", help="openai: fields of every request, over those of bench."),
    click.option(
        "--output-lengths",
        metavar="WHO",
        help="openai: exact (answers as long as requested, default where the server takes ignore_eos), or server.",
    ),
    click.option(
        "--senders", metavar="N", help="openai: processes that send; default auto: as many as the rate needs."
    ),
    click.option(
        "--calibrate",
        metavar="TIME",
        help="openai: how long to measure this client before and after; default 2s, or off.",
    ),
    click.option(
        "--rate",
        metavar="RPS",
        help="Mean rate in requests per second; default: that of the arrivals if they have one, else the preset's.",
    ),
    click.option("--arrivals", metavar="SPEC", help="When requests arrive: poisson, gamma:cv=2, constant, ..."),
    click.option(
        "--lengths", metavar="SPEC", help="Prompt and output tokens: sharegpt, fixed:prompt=512,output=64, ..."
    ),
    click.option(
        "--sessions", metavar="SPEC", help="Turns that follow the answers: burstgpt, fixed:turns=3,think=10s, ..."
    ),
    click.option("--prefixes", metavar="SPEC", help="Prefixes that requests share: shared:count=10,tokens=512,zipf=1."),
    click.option("--content", metavar="SPEC", help="What is inside a prompt; default tokens (random token ids)."),
    click.option("--requests", metavar="N", help="Send so many requests; default: the preset's, a whole trace."),
    click.option(
        "--duration", metavar="TIME", help="Send what is due within this time; a trace on a real system: 60s."
    ),
    click.option("--seed", metavar="N", help="Seed of arrivals, lengths and content (default 0)."),
    click.option(
        "--drain",
        metavar="TIME",
        help="Longest wait for answers after the last departure (default 60s; openai: its timeout; no effect on sim).",
    ),
)


def run_options(without: Collection[str] = ()) -> Callable[[Function], Function]:
    """Adds the options of a run to a command, but those of the names in `without` (with dashes)."""

    def add(function: Function) -> Function:
        for option in reversed(_ALL):
            if _name(option) not in without:
                function = option(function)
        return function

    return add


def _name(option: Callable[..., Any]) -> str:
    """The name of an option, which click knows only of a function that has it."""

    def probe() -> None: ...

    option(probe)
    return str(vars(probe)["__click_params__"][0].name).replace("_", "-")


def given(options: Mapping[str, Any], header: tuple[str, ...] = ()) -> Given:
    """What was given of a run on the command line, in the form that `harness.options.run_spec` takes."""
    from harness.options import Given

    values = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
    if header:
        values["header"] = "\n".join(header)
    return Given(values)


OTHER = "Other options"


class Sectioned(click.Command):
    """`sections` maps a heading to the options under it (without dashes); the rest comes last."""

    def __init__(self, *args: object, sections: Mapping[str, Sequence[str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # handed on as they came
        self._sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups one below the other."""
        told = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]  # arguments: in the usage
        records = {str(param.name).replace("_", "-"): param.get_help_record(ctx) for param in told}
        named = {name for names in self._sections.values() for name in names}
        groups = {**self._sections, OTHER: [name for name in records if name not in named]}
        for heading, names in groups.items():
            rows = [record for name in names if (record := records.get(name)) is not None]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
