"""Results of SGLang's `sglang.benchmark.serving`: JSON lines, a run each; rows where it ran with --output-details.

Source: sgl-project/sglang, python/sglang/benchmark/serving.py (0.5.23). There is no time at which a request was sent.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.experiments.imports._table import (
    Answer,
    Json,
    Stamps,
    ToolRun,
    columns_of,
    count,
    items,
    last_line,
    objective,
    of_serving,
    part,
    spread,
    stamps,
    text,
)
from harness.experiments.imports._table import number_of as number

_NO_TIMES = (
    "SGLang writes no time at which a request was sent: rates, goodput per second and all that goes over time are "
    "unknown, and E2E is TTFT plus the gaps, a little shorter than its own, which runs to the end of the stream"
)


@dataclass(frozen=True, slots=True)
class Sglang:
    """One object a line, each a run."""

    def recognizes(self, values: Sequence[Any]) -> bool:
        """Whether every value is such a result."""
        return all(isinstance(v, Mapping) and "total_output_tokens_retokenized" in v for v in values)

    def runs(self, values: Sequence[Any]) -> Iterator[ToolRun]:
        for value in values:
            detailed = bool(items(value.get("ttfts")))
            answers = [*_answers(value)] if detailed else []
            uneven = any(a.token_n is not None for a in answers)
            rate = number(value.get("request_rate"))
            yield ToolRun(
                tool="sglang",
                answers=answers,
                workload=text(value.get("dataset_name")),
                model=text(part(value, "server_info").get("model_path")),
                rate_rps=rate,
                closed=rate is None and number(value.get("max_concurrency")) is not None,
                per_request=detailed,
                missing=frozenset({"scheduled_s", "sent_s", *(["token_n"] if uneven else [])}),
                notes=(_NO_TIMES,) if detailed else (),
                aggregates=_aggregates(value),
                slo=objective(part(value, "goodput_slos_ms"), {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}, 1e-3),
            )


def _answers(value: Json) -> Iterator[Answer]:
    for ttft_s, gaps_s, output, prompt, error in columns_of(
        value, ("ttfts", "itls", "output_lens"), ("input_lens", "errors")
    ):
        failed = bool(error) or count(output) == 0 or not ttft_s
        token_s: Stamps = [] if failed else stamps(ttft_s, gaps_s)
        yield Answer(
            sent_s=0.0,
            token_s=token_s,
            token_n=None if len(token_s) == count(output) or failed else spread(count(output), len(token_s)),
            prompt_tokens=count(prompt),
            output_tokens=0 if failed else count(output),
            status="error" if failed else "ok",
            error=last_line(error) or ("no token came" if failed else None),
        )


def _aggregates(value: Json) -> dict[str, Any]:
    found, sent = of_serving(value, "e2e_latency"), len(items(value.get("errors")))
    return found | {
        "attainment": number(value.get("slo_attainment")),
        "failed": max(0, sent - found["completed"]) if sent else None,
    }
