"""The definitions in use, as every report prints them."""

from harness.api import Metric
from harness.measure import placed


def in_use() -> tuple[tuple[str, str], ...]:
    """Those of the metrics, then of what is made of them."""
    return (*(term for metric in placed() for term in _terms(metric)), *_OF_ALL)


def _terms(metric: Metric) -> tuple[tuple[str, str], ...]:
    if metric.terms or not metric.in_summary:
        return metric.terms
    return ((metric.label, metric.about.strip().split("\n\n")[0].replace("\n", " ")),)


_OF_ALL = (
    ("percentiles", "linear interpolation on the raw values of the requests that ended well"),
    (
        "attainment",
        "share of all requests that meet every bound; rejected, failed, timed-out and dropped requests miss",
    ),
    ("goodput", "requests within the SLO per second, at the rate of this run"),
    ("throughput", "requests that ended well per second"),
)

OF_REMOTE = (
    ("token event", "an event of the stream whose first choice carries text of the answer, reasoning or a tool call"),
    ("stamp", "when the kernel received the bytes that completed an event, in seconds of the monotonic clock"),
    (
        "read lag",
        "reading minus receiving (s): it delays no stamp, but bytes that are read together share the last one",
    ),
    (
        "client floor",
        (
            "the client's own error against a server with known times, at the rate and streams of the run: half and "
            "99% of all stamps are nearer to the truth; no digit below it is printed, a bound within it is unresolved"
        ),
    ),
)
"""What only a run against a remote server needs."""
