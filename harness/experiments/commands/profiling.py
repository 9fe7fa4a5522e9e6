"""`aiperf profile`, and genai-perf, which it came from.

Sources: ai-dynamo/aiperf 0.13.0 (`aiperf profile --help`); NVIDIA genai-perf 0.0.16 (genai_perf/parser.py).
"""

from collections.abc import Callable

from harness.errors import UsageError
from harness.experiments.commands import _flags
from harness.experiments.commands._flags import Flags, Line

BOUNDS = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2e"}
SLAS = {"--ttft-sla-ms": "ttft", "--tpot-sla-ms": "tpot", "--itl-sla-ms": "tpot", "--e2e-sla-ms": "e2e"}
ENDPOINTS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def aiperf(flags: Flags, line: Line) -> None:
    """The bench command of `aiperf profile`."""
    if flags.has("--config", "-f"):
        raise UsageError(
            "An aiperf configuration file is not read; give its flags, or the commands that it stands for."
        )
    _server(flags, line)
    _lengths(flags, line)
    trace = flags.text("--input-file")
    if trace is not None:
        _trace(trace, flags, line)
    else:
        _traffic(flags, line)
    if (warmups := flags.whole("--warmup-request-count", "--num-warmup-requests")) and "--requests" in line.options:
        line.add("--warmup", warmups)
        line.options["--requests"] = [str(int(line.options["--requests"][0]) + warmups)]
        line.notes.append(
            "aiperf sends its warm-up requests before the run; bench leaves the first ones of the run out"
        )
    elif text := flags.text("--warmup-duration"):
        line.add("--warmup", _flags.duration(text, "--warmup-duration"))
    if turns := flags.number("--conversation-turn-mean", "--session-turns-mean"):
        think_ms = flags.number("--conversation-turn-delay-mean", "--session-turn-delay-mean") or 0.0
        line.add("--sessions", f"fixed:turns={round(turns)},think={think_ms / 1e3:g}s")
    line.add("--seed", flags.whole("--random-seed"))
    _slo(flags, line)


def _server(flags: Flags, line: Line) -> None:
    kind = flags.text("--endpoint-type") or "completions"
    if kind not in ENDPOINTS:
        line.lost[f"--endpoint-type {kind}"] = "bench speaks OpenAI's completions and chat completions"
    models = flags.words("--model", "-m", "--model-names")
    urls = "|".join(u if "://" in u else f"http://{u}" for u in flags.words("--url", "-u")) or None
    if urls is not None and "|" in urls:
        line.notes.append("of several addresses each is to have its path, such as /v1")
    more: dict[str, object] = {}
    if timeout := flags.number("--request-timeout-seconds"):
        more["timeout"] = f"{timeout:g}s"
    if len(models) > 1 or any("," in model for model in models):
        line.lost["--model " + " ".join(models[1:])] = "bench asks one model; the first one stands"
    endpoint = flags.text("--custom-endpoint", "--endpoint") or ENDPOINTS.get(kind)
    endpoint = endpoint if endpoint is None or endpoint.startswith("/") else f"/{endpoint}"
    _flags.server(line, urls, endpoint, models[0].split(",")[0] if models else None, **more)
    for header in flags.words("--header", "-H"):
        name, _, value = header.partition(":")
        line.add("--header", f"{name.strip()}={value.strip()}")
    if (key := flags.text("--api-key")) is not None:
        line.lost[f"--api-key {'*' * min(len(key), 3)}"] = "bench reads it from the variable OPENAI_API_KEY"
    fields: dict[str, object] = {}
    for extra in flags.words("--extra-inputs"):
        if extra.lstrip().startswith("{"):
            fields |= _flags.as_json(extra, "--extra-inputs")
        else:
            name, _, value = extra.partition(":")
            fields[name] = _value(value)
    exact = fields.pop("ignore_eos", None) is True
    line.add("--output-lengths", "exact" if exact else "server")
    if not exact:
        line.notes.append(
            "without --extra-inputs ignore_eos:true answers end where the model likes, as in bench's server"
        )
    _flags.body(line, fields)


def _value(text: str) -> object:
    """A field's value as JSON has it, else as text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _lengths(flags: Flags, line: Line) -> None:
    names = ("--isl", "--prompt-input-tokens-mean", "--synthetic-input-tokens-mean")
    outputs = ("--osl", "--prompt-output-tokens-mean", "--output-tokens-mean")
    flags.has("--output-tokens-mean-deterministic")
    prompt, output = flags.number(*names), flags.number(*outputs)
    spreads = (flags.number("--isl-stddev", "--prompt-input-tokens-stddev", "--synthetic-input-tokens-stddev"),
               flags.number("--osl-stddev", "--prompt-output-tokens-stddev", "--output-tokens-stddev"))  # fmt: skip
    public = flags.text("--public-dataset")
    if public is not None and public.startswith("sharegpt"):
        line.add("--workload", "sharegpt")
        line.notes.append(
            "sharegpt: bench draws lengths from stored quantiles, not the texts ('bench explain sharegpt')"
        )
    elif "--input-file" not in flags.given:
        if public is not None:
            line.lost[f"--public-dataset {public}"] = "bench does not have it; lengths of --isl and --osl stand for it"
        if output is None:
            line.notes.append("without --osl the answers have no set length; here 128 tokens stand for it")
        _flags.normal(line, (prompt or 550, spreads[0] or 0), (output or 128, spreads[1] or 0))
    count = flags.whole("--prefix-prompt-pool-size", "--prompt-prefix-pool-size", "--num-prefix-prompts")
    tokens = flags.whole("--prefix-prompt-length", "--prompt-prefix-length")
    shared = flags.whole("--shared-system-prompt-length")
    if (count and tokens) or shared:
        line.add("--prefixes", f"shared:count={count or 1},tokens={shared or tokens},zipf=0")


def _trace(file: str, flags: Flags, line: Line) -> None:
    line.add("--trace", file)
    kind = flags.text("--custom-dataset-type")
    if kind in ("single_turn", "multi_turn", "random_pool"):
        line.lost[f"--custom-dataset-type {kind}"] = "bench replays traces with times; see 'bench trace info FILE'"
    line.notes.append("the trace is replayed at its own times; name its format with --reader if it is not detected")
    flags.has("--fixed-schedule", "--fixed-schedule-auto-offset")
    for flag, option in (("--fixed-schedule-start-offset", "--start"), ("--fixed-schedule-end-offset", "--stop")):
        if (offset_ms := flags.number(flag)) is not None:
            line.add(option, f"{offset_ms / 1e3:g}s")
    line.add("--requests", flags.whole("--request-count", "--num-requests"))


def _traffic(flags: Flags, line: Line) -> None:
    rates, streams = flags.text("--request-rate"), flags.text("--concurrency")
    requests = flags.whole("--request-count", "--num-requests")
    if text := flags.text("--benchmark-duration"):
        line.add("--duration", _flags.duration(text, "--benchmark-duration"))
    if text := flags.text("--benchmark-grace-period"):
        line.add("--drain", _flags.duration(text, "--benchmark-grace-period"))
    law = flags.text("--arrival-pattern", "--request-rate-mode") or "poisson"
    shape = flags.number("--arrival-smoothness", "--vllm-burstiness") or 1.0
    if rates is not None and "," in rates:
        line.command = "sweep"
        line.add("--rate", rates)
        line.add("--arrivals", _law(law, shape))
        line.add("--requests", requests)
    elif rates is not None:
        _flags.gamma(line, flags.number("--request-rate") or 0.0,
                     {"constant": float("inf"), "gamma": shape}.get(law, 1.0))  # fmt: skip
        line.add("--requests", requests)
    else:
        if streams is not None and "," in streams:
            line.lost[f"--concurrency {streams}"] = (
                "the first stands: bench sweeps rates; repeat the command with other users"
            )
            streams = streams.partition(",")[0]
        number = int(streams) if (streams or "1").isdigit() and streams else 1
        if requests is None and "--duration" not in line.options:
            requests = max(10, 2 * number)  # aiperf's own default
        _flags.users(line, number, requests)
        if not flags.has("--search-recipe"):
            line.notes.append(
                "a concurrency is a closed loop in bench: a slow server gets less load, without a goodput"
            )
        return
    if streams is not None:
        line.lost[f"--concurrency {streams}"] = "bench sends each request when it is due; aiperf skips those above it"


def _law(law: str, shape: float) -> str:
    return (
        f"gamma:cv={shape**-0.5:.6g}"
        if law == "gamma" and shape != 1
        else "constant"
        if law == "constant"
        else "poisson"
    )


def _slo(flags: Flags, line: Line) -> None:
    _flags.objectives(line, flags.words("--goodput"), BOUNDS, "--goodput")
    recipe = flags.text("--search-recipe")
    slas = {metric: limit for flag, metric in SLAS.items() if (limit := flags.number(flag)) is not None}
    if slas:
        line.options.pop("--slo", None)
        line.add("--slo", ",".join(f"{metric}={limit / 1e3:.9g}" for metric, limit in slas.items()))
    if share := flags.number("--slo-attainment-fraction"):
        line.add("--goal", share)
    if recipe is not None:
        line.command = "capacity"
        line.options = {k: v for k, v in line.options.items() if k not in ("--rate", "--requests", "--duration")}
        if "closed" in "".join(line.options.get("--arrivals", [])):
            line.options["--arrivals"] = ["poisson"]
        _flags.needs_slo(line)
        line.notes.append("aiperf searches a concurrency; bench the highest rate whose attainment reaches the goal")


TOOLS: dict[str, Callable[[Flags, Line], None]] = {"aiperf": aiperf, "genai-perf": aiperf}
