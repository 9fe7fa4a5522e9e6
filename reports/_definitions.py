"""The definitions in use, as every report prints them."""

DEFINITIONS = (
    ("TTFT", "time to first token: first token minus the scheduled time of the request (s)"),
    (
        "TPOT",
        "(last - first token) / (n - 1) of one request (s); with one token it has none and meets its bound",
    ),
    ("ITL", "every single gap between token events, pooled over all requests (s)"),
    ("ITL max (request)", "the largest gap of each request: what the bound itl asks of every single request (s)"),
    ("ITL p99 (request)", "the 99th percentile of the gaps of each request: what the bound itl_p99 asks (s)"),
    ("ITL p99 (run)", "the 99th percentile of all gaps of the run: what the bound p99:itl asks, once (s)"),
    ("E2E", "last token minus the scheduled time (s)"),
    ("lateness", "sent minus scheduled time (s): the client's own delay, part of TTFT and E2E"),
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
