"""The timeline of a run as trace events (JSON) for ui.perfetto.dev and chrome://tracing: requests, batches, memory, and
what routers did."""

import json
from dataclasses import dataclass
from typing import Any

from harness.data.folder import Run
from harness.errors import UsageError
from harness.metrics.measure import missing
from reports import _shown, _trace
from reports._format import clean
from reports._shown import Shown

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Perfetto:
    """The first `requests` that are due from `start_s` on (and within `window_s`), and the steps until they ended.

    Requests that were under way at `start_s` are among them. The file says how many of how many it holds.
    """

    requests: int = 1000
    start_s: float = 0.0
    window_s: float | None = None

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ValueError(f"requests must be 1 or more, got {self.requests}")
        if self.window_s is not None and not self.window_s > 0:
            raise ValueError(f"window must be above 0 s, got {self.window_s:g}")

    def render(self, run: Run) -> str:
        """The JSON text, an event a line. Raises UsageError for a run whose file tells no times."""
        if run.requests.num_rows == 0:
            raise UsageError(f"'{run.path}' holds no single requests; there is no timeline of it.")
        if "sent_s" in missing(run.requests):
            raise UsageError(f"'{run.path}' does not tell when requests were sent; there is no timeline of it.")
        shown = _shown.shown(run, self.requests, self.start_s, self.window_s)
        if not len(shown.rows):
            when = _shown.span(self.start_s, self.window_s)
            raise UsageError(f"No request of '{run.path}' is due or under way {when}; choose another start.")
        timed = sorted(_trace.events(shown), key=lambda event: event["ts"])  # stable: at one instant as they were made
        events = [*_trace.names(shown), *timed]
        lines = ",\n".join(json.dumps(event, allow_nan=False, separators=(",", ":")) for event in events)
        other = json.dumps(_other(run, shown), allow_nan=False)
        return f'{{"displayTimeUnit":"ms","otherData":{other},"traceEvents":[\n{lines}\n]}}\n'


def _other(run: Run, shown: Shown) -> dict[str, str]:
    """What the viewer shows about the trace: what was run, and what of it is here."""
    info, backend = run.info, run.info.backend
    facts = {
        "made by": f"bench {info.versions.get('bench', '')}",
        "workload": info.workload.name,
        "arrivals": info.workload.arrivals,
        "backend": backend.get("backend") or backend.get("name"),
        **{name: backend.get(name) for name in ("model", "hardware", "policy")},
        "SLO": info.slo.text,
        "started": info.started,
        "shown": shown.note,
        "times": "microseconds since the start of the run",
    }
    return {name: clean(value) for name, value in facts.items() if value not in (None, "")}
