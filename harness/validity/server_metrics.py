"""Compares the server's own metrics with what the client measured: sums and counts of a run.

Histograms of servers are too coarse for percentiles, so means are compared: a sum divided by a count, both as the
difference of the readings after and before the run.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from harness.api import RunWarning
from harness.data.folder import Run
from harness.data.lists import ascending, number
from harness.data.run_json import Compared, RunInfo
from harness.metrics.measure import ended_well, first_last, metrics, per_request, succeeded

Floats: TypeAlias = npt.NDArray[np.float64]

NEAR = 0.05
"""Share by which client and server may differ before there is a warning."""

NEAR_S = 0.001
"""The same in seconds where the client's floor was not measured: what a local network and HTTP take."""

FLIGHT_NEAR = 0.10
"""Share by which the requests in flight may differ from the server's gauges (Little's law)."""

LATE, SERVER_LATE = "mean lateness of its tokens", "server-late"
"""What `bench serve` tells of itself, and the warning where that is a part of TTFT."""

FEW = 10
"""With fewer readings than this the gauges are shown but not compared."""

_TIMINGS = {"server_queue_s": "time in its queue", "server_ttft_s": "TTFT", "server_prefill_s": "prefill",
            "server_decode_s": "decode"}  # fmt: skip
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_MODEL = ("model_name", "model")


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One series of a server: values and times; `since_start` whether it existed at the first reading."""

    time_s: Floats
    value: Floats
    since_start: bool

    @property
    def increase(self) -> float:
        """Increase of a counter during the run; it restarts at 0 when the server restarts."""
        before = np.concatenate([[self.value[0] if self.since_start else 0.0], self.value[:-1]])
        steps = self.value - before
        return float(np.where(steps >= 0, steps, self.value).sum())

    def at(self, time_s: Floats) -> Floats:
        """The value of a gauge at these times; 0 before its first reading."""
        place = np.searchsorted(self.time_s, time_s, side="right")
        return np.concatenate([[0.0], self.value])[place]


class View:
    """The metrics of a server during a run, by our names for them.

    `read_s` are the times of the readings, `to_the_end` says whether the last one succeeded.
    """

    def __init__(self, table: pa.Table, names: Mapping[str, str], model: str | None = None) -> None:
        self._names = names
        self._series = _series(table, model)
        up = table.filter(pc.equal(table["name"], "up"))
        good = up["value"].to_numpy() == 1.0
        self.read_s: Floats = np.unique(up["time_s"].to_numpy()[good])
        self.to_the_end = bool(len(good) and good[-1])

    def knows(self, word: str) -> bool:
        """Whether the server has this quantity."""
        return bool(self._of(word) or self._of(word, "_count"))

    def total(self, word: str) -> float | None:
        """The increase of a counter over the run."""
        matching = self._of(word)
        return sum(series.increase for series in matching) if matching else None

    def mean_s(self, word: str) -> float | None:
        """The mean of a histogram over what it took in during the run."""
        counted = self.count(word)
        return sum(s.increase for s in self._of(word, "_sum")) / counted if counted else None

    def count(self, word: str) -> float:
        """How many values a histogram took in during the run."""
        return sum(series.increase for series in self._of(word, "_count"))

    def means_s(self, word: str) -> Floats:
        """(readings,) the mean of what a histogram took in since the reading before; NaN where nothing."""
        new, summed = (
            np.diff(np.sum([s.at(self.read_s) for s in self._of(word, end)], axis=0), prepend=np.nan)
            for end in ("_count", "_sum")
        )
        means: Floats = np.divide(summed, new, out=np.full(len(new), np.nan), where=new > 0)
        return means

    def gauge(self, word: str, time_s: Floats, *, mean: bool = False) -> Floats | None:
        """The sum (or mean) of a gauge over all engines at these times; None where the server has none."""
        per_engine = [series.at(time_s) for series in self._of(word)]
        if not per_engine:
            return None
        together: Floats = np.mean(per_engine, axis=0) if mean else np.sum(per_engine, axis=0)
        return together

    def _of(self, word: str, end: str = "") -> list[Series]:
        """The series of a quantity; of all its parts, where a server counts those."""
        parts = self._names.get(word, "").split(" + ")
        return [series for part in parts for series in self._series.get(part + end, [])]


def view(run: Run) -> View | None:
    """The metrics of the run's server; None where nothing was read or the names of its metrics are unknown."""
    names, model = run.info.server.names, run.info.backend.get("model")
    if run.server_metrics is None or not run.server_metrics.num_rows or not names:
        return None
    return View(run.server_metrics, names, model if isinstance(model, str) else None)


def not_streamed(info: RunInfo) -> bool:
    """Whether answers were not streamed, on request."""
    return info.backend.get("stream") is False


def queue_shares(run: Run) -> Floats | None:
    """(requests,) share of the queue in the time from sending to the first token, by the server; None without.

    By the times in a request's own answer (queue beside TTFT, or prefill), else by the means of the histograms between
    the two readings around its last token (where nothing ended there, of the whole run): queue beside prefill, or
    beside TTFT of a server that has no prefill. NaN where a request has no token.
    """
    first_s, last_s = first_last(run.requests)
    queue_share = np.full(len(first_s), np.nan)
    server = view(run)
    rest = "ttft" if server is None or not server.knows("prefill") else "prefill"
    if server is not None and (mean_s := server.mean_s("queue")) is not None and server.knows(rest):
        queue_s, rest_s = server.means_s("queue"), server.means_s(rest)
        overall = _share(np.array([mean_s]), np.array([server.mean_s(rest) or np.nan]), rest)[0]
        shares = np.append(_share(queue_s, rest_s, rest), np.nan)  # behind the last reading nothing is known
        measured = shares[np.searchsorted(server.read_s, last_s)]
        queue_share = np.where(np.isfinite(first_s), np.where(np.isfinite(measured), measured, overall), np.nan)
    if run.http is not None and run.http.num_rows:
        rows = pc.index_in(run.requests.column("request_id"), run.http.column("request_id"))
        row, matched = rows.fill_null(0).to_numpy(), rows.is_valid().to_numpy()
        queue_s, ttft_s, prefill_s = (number(run.http, f"server_{key}_s")[row] for key in ("queue", "ttft", "prefill"))
        before_s = first_s - number(run.requests, "sent_s")
        measured = np.where(
            np.isfinite(queue_s), _share(queue_s, ttft_s, "ttft"), _share(before_s - prefill_s, before_s, "ttft")
        )
        queue_share = np.where(matched & np.isfinite(measured), measured, queue_share)
    return queue_share if np.isfinite(queue_share).any() else None


def _share(queue_s: Floats, rest_s: Floats, rest: str) -> Floats:
    """Share of the queue, where `rest_s` is the prefill behind it or the TTFT that holds it; NaN where not known."""
    whole_s = queue_s + rest_s if rest == "prefill" else rest_s
    share = np.divide(queue_s, whole_s, out=np.full(len(whole_s), np.nan), where=whole_s > 0)
    clipped: Floats = np.clip(share, 0.0, 1.0)
    return clipped


def in_flight(requests: pa.Table, time_s: Floats) -> Floats:
    """(times,) requests that had been sent and had not ended."""
    sent_s = number(requests, "sent_s")
    ended_s, last_s = number(requests, "ended_s"), first_last(requests)[1]
    end_s = np.where(np.isnan(ended_s), last_s, ended_s)
    begun = ascending(sent_s, ~np.isnan(sent_s))
    over = ascending(end_s, ~np.isnan(sent_s) & ~np.isnan(end_s))
    under_way = np.searchsorted(begun, time_s, side="right") - np.searchsorted(over, time_s, side="right")
    return under_way.astype(np.float64)


def compared(run: Run) -> list[Compared]:
    """The rows for `run.json`: means, counts and what only the server knows, by its metrics and in its answers.

    Rows are not compared where one side is incomplete: requests in flight when a run was killed have no record, and
    without a last reading the final sums of the server are unknown.
    """
    server = view(run)
    answers = [*_in_answers(run)]
    if server is None:
        return answers
    rows = (*_latencies(run, server), *_counts(run, server), *_flight(run, server), *_own(server))
    if run.info.state == "running":
        rows = tuple(_open(row, "the run has no end") for row in rows)
    elif not server.to_the_end:
        rows = tuple(_open(row, "the last reading failed") for row in rows)
    return [*rows, *answers]


def _open(row: Compared, why: str) -> Compared:
    """The row without its comparison, where it had one."""
    return row if row.difference is None else replace(row, within=None, why=why)


def warnings(rows: Sequence[Compared]) -> Iterator[RunWarning]:
    """Where the two sides disagree by more than is allowed, and where the server says that it was late itself."""
    there_s = {str(row.name): row.server or 0.0 for row in rows}
    if (late_s := there_s.get(LATE, 0.0)) > NEAR * there_s.get("mean TTFT", math.inf):
        yield RunWarning(
            SERVER_LATE,
            f"the process of the server sent tokens {1000 * late_s:,.3g} ms late on average: its processor is the "
            "limit, not what it serves",
            "give 'bench serve' a machine of its own, or lower the rate",
        )
    bad = {str(row.name): row for row in rows if row.within is False}
    counted = bad.get("requests")
    if counted is not None and (server_n := counted.server or 0) > (client_n := counted.client or 0):
        yield RunWarning(
            "shared-server",
            f"the server counted {server_n:,.0f} ended request{'' if server_n == 1 else 's'}, and "
            f"{client_n:,.0f} of this run ended well: it handled other requests during the run",
            "use a dedicated server for the run",
        )
        return
    differ = [f"{name} {_text(row, row.client)} here and {_text(row, row.server)} there" for name, row in bad.items()]
    if differ:
        yield RunWarning(
            "server-disagrees",
            f"the server's own metrics differ from what the client measured: {', '.join(differ)}",
            "check what lies between them (proxy, network, TLS), and the client's own error (client-floor)",
        )


def _text(row: Compared, value: float | None) -> str:
    if value is None:
        return "nothing"
    return f"{1000 * value:,.4g} ms" if row.unit == "s" else f"{value:,.6g}"


def _latencies(run: Run, server: View) -> Iterator[Compared]:
    """Means of both sides; E2E and TPOT only where nearly all that was sent ended well, as a server counts the rest."""
    first_s, last_s = first_last(run.requests)
    sent_s, ok = number(run.requests, "sent_s"), succeeded(run.requests)
    ttft_s, e2e_s = first_s - sent_s, (last_s - sent_s)[ok]
    tpot_s = per_request(metrics()["tpot"], run.requests)[ok]
    failed = _failed(run.requests)
    nearly_all = failed <= NEAR * float(np.isfinite(sent_s).sum())
    for word, name, values in (("ttft", "TTFT", ttft_s), ("tpot", "TPOT", tpot_s), ("e2e", "E2E", e2e_s)):
        if not server.knows(word):
            continue
        finite = values[np.isfinite(values)]
        client = float(finite.mean()) if len(finite) else None
        floor_s = run.info.floor.error(word).p99_s if run.info.floor else None
        row = _compared(f"mean {name}", "s", client, server.mean_s(word), NEAR_S if floor_s is None else floor_s)
        if word != "e2e" and not_streamed(run.info):
            yield _open(row, "answers were not streamed")
        else:
            yield row if nearly_all or word == "ttft" else _open(row, f"{failed:,} failed")


def _failed(requests: pa.Table) -> int:
    """Requests that were sent and did not end well."""
    return int((np.isfinite(number(requests, "sent_s")) & ~ended_well(requests)).sum())


def _in_answers(run: Run) -> Iterator[Compared]:
    """Means of the times that the server puts into its answers."""
    if run.http is None:
        return
    for column, name in _TIMINGS.items():
        values = number(run.http, column)
        finite = values[np.isfinite(values)]
        if len(finite):
            yield Compared(f"mean {name}, in its answers", "s", None, float(finite.mean()))


def _counts(run: Run, server: View) -> Iterator[Compared]:
    """Sums of both sides; a server may or may not count requests that failed or that the client cancelled."""
    ok, sent = succeeded(run.requests), np.isfinite(number(run.requests, "sent_s"))
    ended = server.count("e2e") if server.knows("e2e") else server.total("requests")
    failed = _failed(run.requests)
    yield from _between("requests", "requests", float(ok.sum()), ended, float(sent.sum()), 1.0, failed)
    counted, planned = number(run.requests, "prompt_tokens_server"), number(run.requests, "prompt_tokens")
    prompt = np.where(np.isnan(counted), planned, counted)
    seen, most, total = float(prompt[ok].sum()), float(prompt[sent].sum()), server.total("prompt_tokens")
    yield from _between("prompt tokens", "tokens", seen, total, most, 0.5, failed)
    output = float(number(run.requests, "output_tokens").sum())
    for row in _between("output tokens", "tokens", output, server.total("output_tokens"), output, 0.5, failed):
        yield _open(row, f"{failed:,} failed") if failed > NEAR * float(sent.sum()) else row
    cached = number(run.requests, "cached_tokens")
    seen, by_server = float(np.nansum(cached)), server.total("cached_tokens")
    if seen or by_server:
        yield Compared("prompt tokens from the cache", "tokens", seen if np.isfinite(cached).any() else None, by_server)


def _between(
    name: str, unit: str, client: float, server: float | None, most: float, least: float, failed: int
) -> Iterator[Compared]:
    """A sum of which the server may have counted any part of what lies between `client` and `most`."""
    if server is not None:
        difference = min(max(server, client), most) - server
        allowed = max(NEAR * most, least)
        why = f"{failed:,} failed" if failed and difference != client - server else None
        yield Compared(name, unit, client, server, difference, allowed, abs(difference) <= allowed, why)


def _flight(run: Run, server: View) -> Iterator[Compared]:
    """The mean number of requests in flight at the times of the readings."""
    sent_s = number(run.requests, "sent_s")
    if not np.isfinite(sent_s).any() or not server.knows("running"):
        return
    last_s = first_last(run.requests)[1]
    until_s = np.nanmax(last_s) if np.isfinite(last_s).any() else np.nanmax(sent_s)
    at_s = server.read_s[(server.read_s >= np.nanmin(sent_s)) & (server.read_s <= until_s)]
    running, waiting = server.gauge("running", at_s), server.gauge("waiting", at_s)
    if running is None or len(at_s) < 3:
        return
    server_mean = float((running if waiting is None else running + waiting).mean())
    client_mean = float(in_flight(run.requests, at_s).mean())
    allowed = max(0.5, FLIGHT_NEAR * max(server_mean, client_mean))
    row = Compared("requests in flight, mean", "requests", client_mean, server_mean, client_mean - server_mean, allowed)
    few = len(at_s) < FEW
    yield _open(row, f"{len(at_s)} readings") if few else replace(row, within=abs(client_mean - server_mean) <= allowed)


def _own(server: View) -> Iterator[Compared]:
    """What only the server knows."""
    for word, name in (("queue", "mean time in its queue"), ("prefill", "mean prefill"), ("decode", "mean decode"),
                       ("late", LATE)):  # fmt: skip
        if (mean_s := server.mean_s(word)) is not None:
            yield Compared(name, "s", None, mean_s)
    if server.knows("kv_use") and len(server.read_s):
        use = server.gauge("kv_use", server.read_s, mean=True)
        yield Compared("KV memory in use, most", "share", None, None if use is None else float(use.max()))
    hits, queries = server.total("cache_hits"), server.total("cache_queries")
    if hits is not None and queries:
        yield Compared("prefix cache hits", "share", None, hits / queries)
    drafts, accepted = server.total("drafts"), server.total("accepted")
    if drafts and accepted is not None:
        yield Compared("tokens of a step with a draft", "tokens", None, 1 + accepted / drafts)
    elif server.knows("accept_length") and len(server.read_s):
        length = server.gauge("accept_length", server.read_s, mean=True)
        mean = None if length is None else float(length.mean())
        yield Compared("tokens of a step with a draft", "tokens", None, mean)
    if (preempted := server.total("preemptions")) is not None:
        yield Compared("preemptions", "preemptions", None, preempted)


def _compared(name: str, unit: str, client: float | None, server: float | None, least: float) -> Compared:
    if client is None or server is None:
        return Compared(name, unit, client, server)
    allowed = max(NEAR * max(abs(client), abs(server)), least)
    difference = client - server
    return Compared(name, unit, client, server, difference, allowed, abs(difference) <= allowed)


def _series(table: pa.Table, model: str | None) -> dict[str, list[Series]]:
    """The series by name; those of other models are left out where ours has some."""
    rows: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    starts: dict[str, float] = {}
    columns = (table[name].to_pylist() for name in ("time_s", "name", "labels", "value"))
    for time_s, name, labels, value in zip(*columns, strict=True):
        if name == "up":
            continue
        starts.setdefault(_label(labels, "instance"), time_s)
        times, values = rows.setdefault((name, labels), ([], []))
        times.append(time_s)
        values.append(value)
    of_model = {key for key in rows if model is not None and model in (_label(key[1], label) for label in _MODEL)}
    by_name: dict[str, list[Series]] = defaultdict(list)
    for (name, labels), (times, values) in rows.items():
        if of_model and (name, labels) not in of_model and any(_label(labels, label) for label in _MODEL):
            continue
        since_start = times[0] <= starts[_label(labels, "instance")]
        by_name[name].append(Series(np.array(times), np.array(values), since_start))
    return by_name


def _label(labels: str, wanted: str) -> str:
    if f'{wanted}="' not in labels:
        return ""
    return next((value for name, value in _LABEL.findall(labels) if name == wanted), "")
