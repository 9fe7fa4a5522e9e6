"""What a server counts: the metrics of `GET /metrics`, and what really happened to each answer.

The metrics have the names and the buckets of vLLM, in Prometheus' text format 0.0.4. Source of names, labels and
buckets: vllm-project/vllm `vllm/v1/metrics/loggers.py`.

The records of answers are the truth that clients are compared with; they tell how late the server itself was.
"""

from __future__ import annotations

import json
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from backends.client.stamps import Lags
from backends.server.service import Stats
from harness.api import Step

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FIRST_TOKEN_S = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
                 160.0, 640.0, 2560.0)  # fmt: skip
GAP_S = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)  # fmt: skip
REQUEST_S = (.3, .5, .8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
             960.0, 1920.0, 7680.0)  # fmt: skip
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
FINISHED = ("stop", "length", "abort", "error")


class Histogram:
    """Counts values into buckets with upper bounds, as Prometheus does."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """Cumulative buckets, sum and count."""
        below = 0
        bounds = (repr(float(bound)) for bound in self.bounds)  # as Prometheus' own client writes them
        for bound, count in zip((*bounds, "+Inf"), self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {below}'
        yield f"{name}_sum{{{labels}}} {self.total!r}"
        yield f"{name}_count{{{labels}}} {below}"


class Metrics:
    """Everything that is counted while the server runs; times in seconds."""

    def __init__(self) -> None:
        self.first_token = Histogram(FIRST_TOKEN_S)
        self.gap = Histogram(GAP_S)
        self.per_token = Histogram(GAP_S)
        self.end_to_end = Histogram(REQUEST_S)
        self.queue = Histogram(REQUEST_S)
        self.prefill = Histogram(REQUEST_S)
        self.decode = Histogram(REQUEST_S)
        self.inference = Histogram(REQUEST_S)
        self.step_tokens = Histogram(STEP_TOKENS)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISHED, 0)

    def steps(self, steps: Iterable[Step]) -> None:
        """Count the tokens of each step."""
        for step in steps:
            self.step_tokens.observe(step.prefill_tokens + step.decode_seqs)

    def text(self, model: str, stats: Stats, lateness: Lags) -> str:
        """The page of now, with by how much tokens left after their time."""
        escaped = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        labels = f'engine="0",model_name="{escaped}"'
        lines: list[str] = []
        for name, kind, about, value in self._values(stats):
            lines += [f"# HELP vllm:{name} {about}", f"# TYPE vllm:{name} {kind}"]
            if isinstance(value, Histogram):
                lines += value.lines(f"vllm:{name}", labels)
            elif isinstance(value, dict):
                lines += [f'vllm:{name}{{{labels},finished_reason="{k}"}} {n}' for k, n in value.items()]
            else:
                lines.append(f"vllm:{name}{{{labels}}} {value!r}")
        name = "bench:token_lateness_seconds"
        lines += [f"# HELP {name} By how much this process sent tokens late.", f"# TYPE {name} summary"]
        lines += [f"{name}_sum{{{labels}}} {lateness.sum_s!r}", f"{name}_count{{{labels}}} {lateness.reads}"]
        return "\n".join(lines) + "\n"

    def _values(self, stats: Stats) -> Iterable[tuple[str, str, str, float | Histogram | dict[str, int]]]:
        yield "num_requests_running", "gauge", "Requests in execution.", stats.running
        yield "num_requests_waiting", "gauge", "Requests that wait to be processed.", stats.waiting
        yield "kv_cache_usage_perc", "gauge", "KV memory in use; 1 is all of it.", stats.kv_usage
        yield "prefix_cache_queries_total", "counter", "Tokens looked for.", stats.prefix_queried_tokens
        yield "prefix_cache_hits_total", "counter", "Tokens found.", stats.prefix_hit_tokens
        yield "num_preemptions_total", "counter", "Preemptions.", stats.preemptions
        yield "prompt_tokens_total", "counter", "Prompt tokens of requests that ended.", self.prompt_tokens
        yield "prompt_tokens_cached_total", "counter", "Prompt tokens out of the cache.", self.cached_tokens
        yield "generation_tokens_total", "counter", "Tokens made.", self.generation_tokens
        yield "request_success_total", "counter", "Requests that ended, by reason.", self.finished
        yield "iteration_tokens_total", "histogram", "Tokens of each step.", self.step_tokens
        yield "time_to_first_token_seconds", "histogram", "From arrival to the first token.", self.first_token
        yield "inter_token_latency_seconds", "histogram", "From token to token.", self.gap
        per = "Mean time per token after the first, of each request."
        yield "request_time_per_output_token_seconds", "histogram", per, self.per_token
        yield "e2e_request_latency_seconds", "histogram", "From arrival to the last token.", self.end_to_end
        yield "request_queue_time_seconds", "histogram", "From arrival to the first step.", self.queue
        yield "request_prefill_time_seconds", "histogram", "From first step to first token.", self.prefill
        yield "request_decode_time_seconds", "histogram", "From first to last token.", self.decode
        yield "request_inference_time_seconds", "histogram", "From first step to last token.", self.inference


@dataclass(slots=True)
class AnswerRecord:
    """One request for tokens. Times in seconds of `time.monotonic`; None, of the status too: it never came to that.

    Row i of the arrays is one write: by then `tokens[i]` tokens were sent; the newest of them was due at `due_s[i]`,
    and `left_s[i]` is when the kernel had the bytes (for an answer in one piece: when the token was ready).
    `received_s` is when the head of the request had been read, `read_s` all of it, `submitted_s` when the backend had
    its tokens. What a null backend promises counts from `read_s`.
    """

    id: str
    x_request_id: str | None
    api: str
    stream: bool
    received_s: float
    status: int | None = None
    read_s: float | None = None
    submitted_s: float | None = None
    scheduled_s: float | None = None
    ended_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    output_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None
    faults: tuple[str, ...] = ()
    tokens: array[int] = field(default_factory=lambda: array("q"))
    due_s: array[float] = field(default_factory=lambda: array("d"))
    left_s: array[float] = field(default_factory=lambda: array("d"))

    def line(self) -> str:
        """As a line of the log."""
        names = [name for name in self.__slots__ if name not in ("tokens", "due_s", "left_s")]
        plain = json.dumps({name: getattr(self, name) for name in names})
        tokens = json.dumps(self.tokens.tolist(), separators=(",", ":"))
        return f'{plain[:-1]}, "tokens": {tokens}, "due_s": [{_micro(self.due_s)}], "left_s": [{_micro(self.left_s)}]}}'


def _micro(times_s: array[float]) -> str:
    """To a microsecond, as the clock through a socket is no better. One format is 5 times as fast as `json.dumps`."""
    return ("%.6f," * len(times_s) % tuple(times_s))[:-1]


def lateness_line(lateness: Lags) -> str:
    """By how much tokens left after their time, for the end of the server's life."""
    if not lateness.reads:
        return "No tokens left."
    p50_ms, p99_ms = (1e3 * (lateness.quantile_s(share) or 0.0) for share in (0.5, 0.99))
    worst_ms = 1e3 * lateness.max_s
    return (
        f"Tokens left p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms, at worst {worst_ms:.2f} ms after their time "
        f"({lateness.reads})."
    )


class TruthLog:
    """Writes the records of answers that have ended, one JSON object a line, and keeps the lateness of all."""

    def __init__(self, file: IO[str] | None, facts: Mapping[str, object]) -> None:
        self._file = file
        self.lateness = Lags()
        clock = {"monotonic_s": time.monotonic(), "unix_s": time.time()}
        self._write(lambda: json.dumps({"server": dict(facts), "clock": clock}, default=str))

    def ended(self, record: AnswerRecord) -> None:
        """An answer is over; those with faults do not count as late."""
        if not record.faults:
            self.lateness.add(record.left_s, record.due_s, 0)
        self._write(record.line)

    def close(self) -> None:
        """The last line has the lateness of tokens."""
        late = self.lateness
        quantiles = {f"p{p}_s": late.quantile_s(p / 100) for p in (50, 99)}
        self._write(lambda: json.dumps({"lateness": {"tokens": late.reads, **quantiles, "max_s": late.max_s}}))
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: Callable[[], str]) -> None:
        if self._file is not None:
            self._file.write(line() + "\n")
            self._file.flush()
