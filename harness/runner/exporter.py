"""Metrics of the runs of a command in Prometheus' format, over HTTP, while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from harness.api import Status
from harness.errors import UsageError
from harness.metrics.objective import Seen
from harness.metrics.quantiles import quantile
from harness.runner.live import Live

EDGES_S = tuple(float(f"{m}e{e}") for e in range(-4, 3) for m in (1, 2, 5))
"""Upper edges of the histograms, from 0.1 ms to 500 s."""
TIMED = {"ttft": "time to first token", "tpot": "time per output token after the first", "e2e": "time to last token"}
ERRORS = ("ttft", "itl", "tpot", "e2e", "lateness")


class Exporter:
    """Counters and histograms over all runs of a command, and gauges of the run under way, else of the last one.

    They include warm-up, and what comes from answers is up to a second behind.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._runs = 0
        self._active = False
        self._counted = ((0, 0, 0), Live())  # (sent, scored, met) of earlier runs, and the last one, changed together
        self._ended = Counter("bench_requests_finished", "Requests that ended", ["status"], registry=self.registry)
        for status in get_args(Status):
            self._ended.labels(status)
        self._tokens = Counter("bench_tokens", "Tokens of requests that ended", ["part"], registry=self.registry)
        self._times = {
            name: Histogram(f"bench_{name}_seconds", text, buckets=EDGES_S, registry=self.registry)
            for name, text in TIMED.items()
        }
        self.registry.register(self)

    def __repr__(self) -> str:
        return f"<Exporter of {self._runs} runs>"

    @contextmanager
    def following(self, live: Live) -> Iterator[None]:
        """Export the state of this run from now on."""
        self._counted = self._sums(), live
        self._runs += 1
        self._active, live.observe = True, self._observe
        try:
            yield
        finally:
            self._active = False

    def _sums(self) -> tuple[int, int, int]:
        (sent, scored, met), live = self._counted
        return sent + live.sent, scored + live.scored, met + live.met

    def _observe(self, seen: Seen) -> None:
        table = seen.table
        for status in table["status"].to_pylist():
            self._ended.labels(status).inc()
        for part in ("prompt", "output"):
            self._tokens.labels(part).inc(float(table[f"{part}_tokens"].to_numpy().sum()))
        for name, histogram in self._times.items():
            values_s = seen.values(name)
            for value_s in values_s[seen.ok & np.isfinite(values_s)].tolist():
                histogram.observe(value_s)

    def collect(self) -> Iterator[Metric]:
        """What the counters of a run say at this moment; called by each scrape."""
        live = self._counted[1]
        sent, scored, met = self._sums()
        late_s = np.array(live.late_s())
        yield CounterMetricFamily("bench_runs", "Runs begun: one, or the trials of a search", self._runs)
        yield CounterMetricFamily("bench_requests_sent", "Requests sent", sent)
        yield CounterMetricFamily("bench_slo_requests", "Requests scored under the SLO", scored)
        yield CounterMetricFamily("bench_slo_requests_met", "Requests that met the SLO", met)
        gauges: dict[str, tuple[str, float | None]] = {
            "run_active": ("1 while a run sends or awaits answers", float(self._active)),
            "run_seconds": ("Time since the run began", live.elapsed_s()),
            "scheduled_rate": ("Requests per second that the run is to send", live.scheduled_rps),
            "requests_in_flight": ("Requests sent and not answered", self._active * (live.sent - live.finished)),
            "slo_attainment": ("Share of the run's requests that met the SLO", live.attainment),
            "lateness_p99_seconds": ("How late recent requests left", quantile(late_s, 0.99) if len(late_s) else None),
            "slo_goal": ("Share that should", live.slo.goal if live.by_request else None),
        }
        for name, (text, value) in gauges.items():
            if value is not None:
                yield GaugeMetricFamily(f"bench_{name}", text, value)
        floor = GaugeMetricFamily(
            "bench_client_floor_p99_seconds", "Error of the client, measured before the run", labels=["metric"]
        )
        for metric in ERRORS:
            error_s = None if live.floor is None else live.floor.error(metric).p99_s
            if error_s is not None:
                floor.add_metric([metric], error_s)
        yield floor


@contextmanager
def exported(host: str, port: int) -> Iterator[tuple[Exporter, int]]:
    """Serve metrics at that address while the body runs: the exporter, and the port. Raises UsageError."""
    exporter = Exporter()
    try:
        server, thread = start_http_server(port, host, exporter.registry)
    except OSError as error:
        raise UsageError(f"--metrics-port: {host}:{port} cannot be listened on: {error.strerror}.") from None
    try:
        yield exporter, server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
