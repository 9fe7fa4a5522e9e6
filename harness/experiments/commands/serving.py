"""`vllm bench serve`, and SGLang's bench_serving, which is made like it.

Sources: vllm-project/vllm, vllm/benchmarks/serve.py and datasets (0.32, 0.33); sgl-project/sglang,
sglang/benchmark/serving.py and datasets/common.py (0.5.23).
"""

import json
import math
from collections.abc import Callable

from harness.errors import UsageError
from harness.experiments.commands import _flags
from harness.experiments.commands._flags import Flags, Line

BOUNDS = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}
SAMPLING = ("top-p", "top-k", "min-p", "temperature", "frequency-penalty", "presence-penalty", "repetition-penalty",
            "logprobs")  # fmt: skip
PORTS = {"sglang": 30000, "vllm": 8000, "lmdeploy": 23333, "trt": 8000}
"""Default ports of SGLang's backends, by how their names begin."""


def vllm(flags: Flags, line: Line) -> None:
    """The bench command of `vllm bench serve`."""
    endpoint = flags.text("--endpoint") or "/v1/completions"
    backend = flags.text("--backend", "--endpoint-type") or "openai"
    if backend == "openai-chat" and "chat" not in endpoint:
        endpoint = "/v1/chat/completions"
    elif backend not in ("openai", "openai-chat", "vllm"):
        line.lost[f"--backend {backend}"] = "bench speaks OpenAI's completions and chat completions"
    host = f"{flags.text('--host') or '127.0.0.1'}:{flags.text('--port') or 8000}"
    more = {"insecure": "true"} if flags.has("--insecure") else {}
    base, model = flags.text("--base-url"), flags.text("--model")
    _flags.server(line, base or host, endpoint, flags.text("--served-model-name") or model, **more)
    requests = flags.whole("--num-prompts")
    requests = 1000 if requests is None else requests
    _vllm_dataset(flags, line)
    _traffic(flags, line, requests)
    if flags.has("--ignore-eos"):
        line.add("--output-lengths", "exact")
    else:
        line.add("--output-lengths", "server")
        line.notes.append("without --ignore-eos answers end where the model likes; so does --output-lengths server")
    if flags.text("--temperature") is None:
        line.notes.append("without --temperature the server's default holds; bench sends none either")
    warmups = flags.whole("--num-warmups")
    if warmups:
        line.add("--warmup", warmups)
        line.notes.append("vllm sends its warm-up requests before the run; bench leaves the first ones of the run out")
        line.options["--requests"] = [str(requests + warmups)]
    _rest(flags, line, "--extra-body")


def sglang(flags: Flags, line: Line) -> None:
    """The bench command of SGLang's bench_serving; its native route is replaced by OpenAI's."""
    backend = flags.text("--backend") or "sglang"
    chat = backend.endswith("chat")
    if not backend.endswith(("-oai", "-oai-chat")) and backend not in (
        "vllm",
        "vllm-chat",
        "lmdeploy",
        "lmdeploy-chat",
    ):
        line.notes.append(f"--backend {backend} uses a route of its own; bench asks the server's /v1/completions")
    port = flags.text("--port") or next((p for name, p in PORTS.items() if backend.startswith(name)), 8000)
    host = (flags.text("--host") or "127.0.0.1").replace("0.0.0.0", "127.0.0.1")  # noqa: S104  # an address to call
    base, model = flags.text("--base-url"), flags.text("--model")
    endpoint = "/v1/chat/completions" if chat else "/v1/completions"
    more = {"stream": "false"} if flags.has("--disable-stream") else {}
    _flags.server(line, base or f"{host}:{port}", endpoint, flags.text("--served-model-name") or model, **more)
    requests = flags.whole("--num-prompts")
    _sglang_dataset(flags, line)
    _traffic(flags, line, 1000 if requests is None else requests)
    line.add("--output-lengths", "server" if flags.has("--disable-ignore-eos") else "exact")
    warmups = flags.whole("--warmup-requests")
    if warmups is None or warmups:
        line.notes.append("sglang's warm-up requests are sent before the run; bench sends two (--probe short)")
    if "--temperature" not in flags.given:
        flags.given["--temperature"] = ["0"]  # its default, which is greedy
    _rest(flags, line, "--extra-request-body")


def _traffic(flags: Flags, line: Line, requests: int) -> None:
    """The rate, the law of the gaps, and the limit on requests under way."""
    if requests < 1:
        raise UsageError(f"--num-prompts must be 1 or more, got {requests}.")
    rate, most = flags.number("--request-rate"), flags.whole("--max-concurrency")
    rate = math.inf if rate is None else rate
    shape, ramp = flags.number("--burstiness") or 1.0, flags.text("--ramp-up-strategy")
    low, high = flags.number("--ramp-up-start-rps"), flags.number("--ramp-up-end-rps")
    if rate <= 0 or shape <= 0 or (most is not None and most < 1):
        raise UsageError("--request-rate, --burstiness and --max-concurrency must be above 0.")
    if ramp is not None and low is not None and high is not None:
        over_s = requests / ((low + high) / 2) if low + high > 0 else 0.0
        line.add("--arrivals", f"ramp:from={low or 0.01:g},to={high:g},over={over_s:.6g}s,cv={shape**-0.5:.6g}")
        line.add("--requests", requests)
        line.notes.append("vllm ramps by the number of the request, bench by time; both take as long")
        if ramp == "exponential":
            line.lost["--ramp-up-strategy exponential"] = "bench's ramp is a straight line"
    elif rate == math.inf:
        _flags.users(line, min(most or requests, requests), requests)
        line.notes.append(
            "without a rate the next request waits for an answer: bench calls that a closed loop, in which a slow "
            "server gets less load, and gives no goodput at a rate"
        )
    else:
        _flags.gamma(line, rate, shape)
        line.add("--requests", requests)
        if most is not None:
            line.lost[f"--max-concurrency {most}"] = (
                "bench sends each request when it is due; vllm holds it back, and leaves that wait out of TTFT"
            )


def _vllm_dataset(flags: Flags, line: Line) -> None:
    name = flags.text("--dataset-name") or "random"
    flags.text("--dataset-path")
    common = flags.whole("--input-len"), flags.whole("--output-len")

    def tokens(flag: str, at: int, default: int) -> int:
        found = flags.whole(flag)
        return found if found is not None else common[at] if common[at] is not None else default  # type: ignore[return-value]  # not None

    if name == "random":
        prompt, output = tokens("--random-input-len", 0, 1024), tokens("--random-output-len", 1, 128)
        ratios = _ratios(flags.text("--random-range-ratio"))
        _flags.lengths(line, _around(prompt, ratios[0]), _around(output, ratios[1]))
        if prefix := flags.whole("--random-prefix-len"):
            line.add("--prefixes", f"shared:count=1,tokens={prefix}")
    elif name == "prefix_repetition":
        count, prefix = flags.whole("--prefix-repetition-num-prefixes"), flags.whole("--prefix-repetition-prefix-len")
        suffix, output = (
            tokens("--prefix-repetition-suffix-len", 0, 256),
            tokens("--prefix-repetition-output-len", 1, 128),
        )
        _flags.lengths(line, (suffix, suffix), (output, output))
        line.add("--prefixes", f"shared:count={count or 10},tokens={prefix or 256},zipf=0")
    elif name == "timed-trace" or name == "timed_trace":
        line.add("--trace", flags.text("--dataset-path"))
        line.notes.append("the trace is replayed at its own times; name its format with --reader if it is not detected")
        for flag in [flag for flag in flags.given if flag.startswith(("--timed-trace-", "--self-timed"))]:
            flags.text(flag) if flags.given[flag] else flags.has(flag)
    else:
        _named_dataset(name, flags, line)


def _sglang_dataset(flags: Flags, line: Line) -> None:
    name = flags.text("--dataset-name") or "sharegpt"
    flags.text("--dataset-path")
    if name in ("random", "random-ids"):
        prompt, output = flags.whole("--random-input-len") or 1024, flags.whole("--random-output-len") or 1024
        ratio = flags.number("--random-range-ratio") or 0.0
        _flags.lengths(line, (max(int(prompt * ratio), 1), prompt), (max(int(output * ratio), 1), output))
        line.notes.append("sglang's range ratio is the least share of a length: 0 draws from 1 to it, 1 is fixed")
    elif name == "generated-shared-prefix":
        groups, prefix = flags.whole("--gsp-num-groups") or 64, flags.whole("--gsp-system-prompt-len") or 2048
        prompt, output = flags.whole("--gsp-question-len") or 128, flags.whole("--gsp-output-len") or 256
        _flags.lengths(line, (prompt, prompt), (output, output))
        line.add("--prefixes", f"shared:count={groups},tokens={prefix},zipf=0")
    elif name == "mooncake" and flags.has("--use-trace-timestamps"):
        line.add("--trace", flags.text("--dataset-path"))
    else:
        _named_dataset(name, flags, line)


def _named_dataset(name: str, flags: Flags, line: Line) -> None:
    """A data set of which bench stores the lengths, or one that it does not have."""
    if name in ("sharegpt", "burstgpt", "mooncake"):
        line.add("--workload", name)
        line.notes.append(f"{name}: bench draws lengths from stored quantiles, not the texts ('bench explain {name}')")
        if output := flags.whole("--sharegpt-output-len", "--output-len"):
            line.lost[f"--sharegpt-output-len {output}"] = "bench draws prompt and output lengths together"
        return
    line.add("--workload", "sharegpt")
    line.lost[f"--dataset-name {name}"] = (
        "bench does not have it; ShareGPT lengths stand for it. Take lengths of your own: --workload "
        "fixed:prompt=512,output=64, or --trace FILE"
    )


def _ratios(text: str | None) -> tuple[float, float]:
    """Range ratios of input and output: one number, or a JSON object of both."""
    try:
        found = json.loads(text or "0")
    except ValueError:
        found = None
    each = (found.get("input", 0), found.get("output", 0)) if isinstance(found, dict) else (found, found)
    if not all(isinstance(ratio, int | float) and 0 <= ratio < 1 for ratio in each):
        raise UsageError(f"--random-range-ratio must be in [0, 1), got '{text}'.")
    return float(each[0]), float(each[1])


def _around(tokens: int, ratio: float) -> tuple[int, int]:
    return max(math.floor(tokens * (1 - ratio)), 1), math.ceil(tokens * (1 + ratio))


def _rest(flags: Flags, line: Line, extra: str) -> None:
    """What both have: seed, SLO, headers and fields of the body."""
    line.add("--seed", flags.whole("--seed"))
    _flags.objectives(line, flags.words("--goodput"), BOUNDS, "--goodput")
    for header in flags.words("--header"):
        line.add("--header", header)
    fields: dict[str, object] = {}
    for name in SAMPLING:
        if (value := flags.number(f"--{name}")) is not None:
            fields[name.replace("-", "_")] = round(value) if value == round(value) else value
    if (given := flags.text(extra)) is not None:
        fields |= _flags.as_json(given, extra)
    _flags.body(line, fields)


TOOLS: dict[str, Callable[[Flags, Line], None]] = {"vllm": vllm, "sglang": sglang}
