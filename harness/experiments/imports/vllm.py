"""Results of `vllm bench serve --save-result`: JSON, with a row per request where it was run with --save-detailed.

Source: vllm-project/vllm, vllm/benchmarks/serve.py (0.33). Latencies count from sending.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
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
    of_serving,
    spread,
    stamps,
    text,
)
from harness.experiments.imports._table import number_of as number


@dataclass(frozen=True, slots=True)
class Vllm:
    """One object, or several one below the other (--append-result), each a run."""

    def recognizes(self, values: Sequence[Any]) -> bool:
        """Whether every value is such a result."""
        return all(
            isinstance(v, Mapping) and {"request_throughput", "mean_ttft_ms", "backend"} <= v.keys()
            and isinstance(v["backend"], str)  # our run.json has vLLM's keys too
            and "total_output_tokens_retokenized" not in v for v in values
        )  # fmt: skip

    def runs(self, values: Sequence[Any]) -> Iterator[ToolRun]:
        for value in values:
            detailed = all(items(value.get(name)) for name in ("ttfts", "itls"))
            timed = bool(items(value.get("start_times"))) or not detailed
            answers = [*_answers(value)] if detailed else []
            rate = number(value.get("request_rate"))
            started = text(value.get("date"))
            with contextlib.suppress(ValueError):  # '20260102-030405' as ISO 8601; another text as it is
                started = started and datetime.strptime(started, "%Y%m%d-%H%M%S").isoformat()  # noqa: DTZ007  # local
            yield ToolRun(
                tool="vllm",
                answers=answers,
                model=text(value.get("model_id")),
                started=started,
                rate_rps=rate,
                closed=rate is None and number(value.get("max_concurrency")) is not None,
                per_request=detailed,
                missing=frozenset(_missing(answers, timed=timed)),
                aggregates=of_serving(value, "e2el") | {"failed": count(value.get("failed"))},
            )


def _missing(answers: Sequence[Answer], *, timed: bool) -> Iterator[str]:
    yield "scheduled_s"
    if not timed:
        yield "sent_s"
    if any(a.status == "ok" and len(a.token_s) not in (a.output_tokens, a.output_tokens + 1) for a in answers):
        yield "token_n"


def _answers(value: Json) -> Iterator[Answer]:
    columns = columns_of(value, ("ttfts", "itls", "output_lens"), ("start_times", "input_lens", "errors"))
    for ttft_s, gaps_s, output, start_s, prompt, error in columns:
        failed = bool(error) or count(output) == 0
        sent_s = 0.0 if start_s is None else start_s  # older versions write no start_times
        token_s: Stamps = [] if failed else stamps(sent_s + ttft_s, gaps_s)
        made, events = count(output), len(token_s)
        token_n: list[int] | None = None
        if events == made + 1:  # the last one is the chunk that ends an answer without text
            token_n = [*[1] * made, 0]
        elif events != made:
            token_n = spread(made, events)
        yield Answer(
            sent_s=sent_s,
            token_s=token_s,
            token_n=token_n,
            prompt_tokens=count(prompt),
            output_tokens=0 if failed else count(output),
            status="error" if failed else "ok",
            error=last_line(error) or ("no token came" if failed else None),
        )
