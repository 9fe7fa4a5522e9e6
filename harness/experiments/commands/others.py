"""`guidellm run`, and inference-perf's configuration file.

Sources: vllm-project/guidellm 0.8.1 (`guidellm run --help`, its schemas of profiles, constraints and data); before 0.7
it was `guidellm benchmark` with --target, --rate-type, --rate; kubernetes-sigs/inference-perf 0.7.0 (docs/config.md).
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness import untrusted
from harness.errors import UsageError
from harness.experiments.commands import _flags
from harness.experiments.commands._flags import Flags, Line

GUIDELLM_BOUNDS = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2el_ms": "e2e"}
PERF_BOUNDS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "request_latency": "e2e"}


def _fields(text: str) -> dict[str, Any]:
    """`kind=constant,rate=10`, or the same as JSON."""
    if text.lstrip().startswith("{"):
        return _flags.as_json(text, "a guidellm option")
    pairs = [part.partition("=") for part in text.split(",")]
    return {(key if equals else "kind").strip(): value if equals else key for key, equals, value in pairs}


def guidellm(flags: Flags, line: Line) -> None:
    """The bench command of `guidellm run`, also by the flags of `guidellm benchmark`."""
    if flags.has("--config", "--scenario", "-c"):
        raise UsageError("A guidellm scenario is not read; give its options, --profile, --data and --constraint.")
    backend = _fields(flags.text("--backend") or "kind=openai_http")
    target, model = flags.text("--target") or backend.get("target"), flags.text("--model") or backend.get("model")
    endpoint = str(backend.get("request_format") or flags.text("--request-type") or "/v1/chat/completions")
    endpoint = {"chat_completions": "/v1/chat/completions", "text_completions": "/v1/completions"}.get(
        endpoint, endpoint
    )
    more = {"insecure": "true"} if str(backend.get("verify")).lower() == "false" else {}
    _flags.server(line, target, endpoint, model, **more)
    _guidellm_data(flags, line)
    limits = {found.get("kind"): found for text in flags.words("--constraint") for found in [_fields(text)]}
    requests = flags.whole("--max-requests")
    if (limit := limits.pop("max_requests", None)) is not None:
        requests = int(limit.get("count", 0))
    if (limit := limits.pop("max_duration", None)) is not None:
        line.add("--duration", _flags.duration(limit.get("seconds", 0), "max_duration"))
    elif text := flags.text("--max-seconds", "--max-duration"):
        line.add("--duration", _flags.duration(text, "--max-seconds"))
    for kind in limits:
        line.lost[f"--constraint kind={kind}"] = "bench ends no run early; see --max-failed"
    _guidellm_slo(flags, line)
    _guidellm_profile(flags, line, requests)
    line.add("--output-lengths", "exact")
    if (seed := flags.text("--seed", "--random-seed")) is not None:
        line.add("--seed", _fields(seed).get("value", seed))


def _guidellm_profile(flags: Flags, line: Line, requests: int | None) -> None:
    profile = _fields(flags.text("--profile", "--rate-type") or "kind=sweep")
    kind = str(profile.get("kind"))
    rates = profile.get("rate") or profile.get("streams") or flags.text("--rate")
    values = (
        rates if isinstance(rates, list) else str(rates).replace("[", "").replace("]", "").split(",") if rates else []
    )
    if kind in ("constant", "poisson", "async"):
        line.command = "sweep" if len(values) > 1 else "run"
        line.add("--rate", ",".join(str(value).strip() for value in values) or None)
        line.add("--arrivals", "constant" if kind != "poisson" else "poisson")
        line.add("--requests", requests)
        if (most := profile.get("max_concurrency")) is not None:
            line.lost[f"max_concurrency={most}"] = "bench sends each request when it is due; guidellm holds it back"
    elif kind in ("concurrent", "synchronous", "throughput"):
        if len(values) > 1:
            line.lost[f"streams={','.join(map(str, values[1:]))}"] = (
                "bench sweeps rates; repeat the command with other users"
            )
        number = (
            int(values[0]) if values else 1 if kind == "synchronous" else int(profile.get("max_concurrency") or 512)
        )
        _flags.users(line, number, requests)
        line.notes.append(
            "streams are a closed loop in bench: a slow server gets less load, and there is no goodput at a rate"
        )
    else:
        line.command = "capacity"
        line.options.pop("--duration", None)
        line.add("--goal", profile.get("target_attainment"))
        what = "sweeps between one stream and as many as it can" if kind == "sweep" else "searches a number of streams"
        _flags.needs_slo(line)
        line.notes.append(
            f"guidellm's {kind} {what}; bench searches the highest rate whose attainment reaches the goal"
        )


def _guidellm_data(flags: Flags, line: Line) -> None:
    texts = flags.words("--data")
    data = _fields(texts[0]) if texts else {}
    prompt, output = data.get("prompt_tokens"), data.get("output_tokens")
    if prompt is not None:
        spread = (float(data.get(f"{name}_tokens_stdev") or 0) for name in ("prompt", "output"))
        wide = tuple(spread)
        _flags.normal(line, (float(prompt), wide[0]), (float(output or 128), wide[1]))
        if (turns := int(data.get("turns") or 1)) > 1:
            line.add("--sessions", f"fixed:turns={turns},think=0s")
        return
    line.add("--workload", "sharegpt")
    if texts:
        line.lost[f"--data {texts[0]}"] = (
            "bench does not read it; ShareGPT lengths stand for it. A trace is replayed with --trace FILE"
        )


def _guidellm_slo(flags: Flags, line: Line) -> None:
    if (text := flags.text("--metrics")) is not None:
        slo = _fields(text).get("slo") or {}
        bounds = [
            f"{GUIDELLM_BOUNDS[name]}={float(limit) / 1e3:.9g}"
            for name, limit in slo.items()
            if name in GUIDELLM_BOUNDS
        ]
        line.add("--slo", ",".join(bounds) or None)


def inference_perf(flags: Flags, line: Line) -> None:
    """The bench command of `inference-perf -c FILE`: one stage is a run, several are a sweep."""
    file = flags.text("-c", "--config-file", "--config")
    config = _config(file) if file is not None else {}
    for flag, values in flags.given.items():  # --load.type constant
        if "." in flag:
            flags.text(flag)
            _put(config, flag.removeprefix("--").split("."), values[-1] if values else None)
    if not config:
        raise UsageError("inference-perf is configured by a file; give 'inference-perf -c config.yml'.")
    at = dict(_leaves(config))

    def taken(*names: str) -> Any:
        return next((at.pop(name) for name in names if name in at), None)

    api = taken("api.type") or "completion"
    endpoint = "/v1/chat/completions" if api == "chat" else "/v1/completions"
    _flags.server(line, taken("server.base_url"), endpoint, taken("server.model_name"))
    taken("server.type"), taken("api.streaming")
    line.add("--output-lengths", "exact" if taken("server.ignore_eos") is not False else "server")
    kind, laws = taken("data.type"), []
    for name, fallback in (("input", 512.0), ("output", 128.0)):
        where = f"data.{name}_distribution"
        mean, spread = taken(f"{where}.mean"), float(taken(f"{where}.std_dev") or 0.0)
        laws.append((fallback if mean is None else float(mean), spread))
        low, high, _ = (taken(f"{where}.{part}") for part in ("min", "max", "total_count"))
        if spread:
            line.lost[f"{where} from {low} to {high}"] = "bench draws from the law without cutting it"
    if kind in (None, "random", "synthetic", "mock"):
        _flags.normal(line, laws[0], laws[1])
    else:
        line.add("--workload", "sharegpt")
        if kind != "shareGPT":
            line.lost[f"data.type {kind}"] = "bench does not have it; ShareGPT lengths stand for it"
    stages = taken("load.stages") or []
    stages = json.loads(stages) if isinstance(stages, str) else stages
    law = taken("load.type") or "constant"
    rates = [float(stage["rate"]) for stage in stages if "rate" in stage]
    if not rates:
        raise UsageError("load.stages of the inference-perf configuration has no stage with a rate.")
    line.command = "sweep" if len(rates) > 1 else "run"
    line.add("--rate", ",".join(f"{rate:g}" for rate in rates))
    line.add("--arrivals", "poisson")
    if law == "constant":
        line.notes.append("its constant load has exponential gaps, so it is --arrivals poisson here")
    line.add("--duration", _flags.duration(max(float(s.get("duration", 0)) for s in stages), "duration"))
    limits = {ours: limit for name, ours in PERF_BOUNDS.items()
              if (limit := taken(f"report.goodput.constraints.{name}")) is not None}  # fmt: skip
    line.add("--slo", ",".join(f"{metric}={float(limit):.9g}" for metric, limit in limits.items()) or None)
    flags.given |= {name: [str(value)] for name, value in at.items() if value is not None}


def _config(file: str) -> dict[str, Any]:
    try:
        text = untrusted.read_text(Path(file), untrusted.MOST_TOML_BYTES)
        found = untrusted.parse_yaml(text, f"'{file}'")
    except OSError as error:
        raise UsageError(f"'{file}' cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UsageError(f"'{file}' is not YAML ({error}).") from None
    if not isinstance(found, dict):
        raise UsageError(f"'{file}' is no configuration of inference-perf.")
    return found


def _put(config: dict[str, Any], path: list[str], value: object) -> None:
    for name in path[:-1]:
        config = config.setdefault(name, {})
    config[path[-1]] = value


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its dotted name; lists stay whole."""
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", inner


TOOLS: dict[str, Callable[[Flags, Line], None]] = {"guidellm": guidellm, "inference-perf": inference_perf}
