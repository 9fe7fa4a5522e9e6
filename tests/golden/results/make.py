"""Makes the result files of other tools: each client sends a few requests to `bench serve`, one of which breaks off.

Run once, with the environments of `make nightly`, never by the tests: `python tests/golden/results/make.py [NAME...]`.
SGLang and inference-perf have no environment there; give a Python that can import them:
`--python sglang=PATH --python inference-perf=PATH`. What a tool wrote is kept as it is, but for the name of the
folder it ran in, and for the words of prompts and answers, which stand for nothing.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SERVING = ["--backend", "null:ttft=0.03,itl=0.004,tokens=8", "--fault", "slow=50%:every=3",
           "--fault", "reset:every=7,token=3", "--name", "m", "--port", "0", "--grace", "1s"]  # fmt: skip
REQUESTS, RATE = 12, 20
QUIET = {"DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "NO_COLOR": "1", "TOKENIZERS_PARALLELISM": "false",
         "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip

VLLM = """
import argparse
from vllm.benchmarks import serve
parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""


def vllm(python: Path, url: str, work: Path) -> dict[str, Path]:
    """With and without --save-detailed."""
    common = ["--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions", "--model", "m",
              "--tokenizer", "tiny", "--dataset-name", "random", "--random-input-len", "32", "--random-output-len", "8",
              "--num-prompts", f"{REQUESTS}", "--request-rate", f"{RATE}", "--ignore-eos", "--save-result",
              "--goodput", "ttft:40", "tpot:6", "--percentile-metrics", "ttft,tpot,itl,e2el",
              "--metric-percentiles", "50,90,99", "--disable-tqdm"]  # fmt: skip
    called(work, python, "-c", VLLM, *common, "--save-detailed", "--result-filename", "vllm-detailed.json")
    called(work, python, "-c", VLLM, *common, "--result-filename", "vllm-aggregate.json")
    return {name: work / name for name in ("vllm-detailed.json", "vllm-aggregate.json")}


def sglang(python: Path, url: str, work: Path) -> dict[str, Path]:
    """With --output-details."""
    called(
        work, python, "-m", "sglang.benchmark.serving", "--backend", "sglang-oai", "--base-url", url, "--model", "m",
        "--tokenizer", "tiny", "--dataset-name", "random-ids", "--random-input-len", "32", "--random-output-len", "8",
        "--random-range-ratio", "1", "--num-prompts", f"{REQUESTS}", "--request-rate", f"{RATE}", "--output-details",
        "--output-file", "sglang.jsonl", "--disable-tqdm", "--warmup-requests", "0", "--goodput", "ttft:40", "tpot:6",
    )  # fmt: skip
    return {"sglang-detailed.jsonl": work / "sglang.jsonl"}


def guidellm(python: Path, url: str, work: Path) -> dict[str, Path]:
    """Arrivals at a constant rate, so that there is a time at which each was due."""
    called(
        work, python.with_name("guidellm"), "run", "--backend", f"kind=openai_http,target={url},model=m",
        "--tokenizer", "kind=huggingface_auto,model=tiny", "--profile", f"kind=constant,rate={RATE}",
        "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8", "--output", "kind=json,path=guidellm.json",
        "--disable-console",
    )  # fmt: skip
    return {"guidellm.json": work / "guidellm.json"}


def aiperf(python: Path, url: str, work: Path) -> dict[str, Path]:
    """A line per request, and the aggregates beside it."""
    called(
        work, python.with_name("aiperf"), "profile", "--model", "m", "--url", url, "--endpoint-type", "chat",
        "--streaming", "--request-rate", f"{RATE}", "--request-count", f"{REQUESTS}", "--warmup-request-count", "2",
        "--tokenizer", work / "tiny", "--use-server-token-count", "--isl", "32", "--osl", "8",
        "--extra-inputs", "ignore_eos:true", "--goodput", "time_to_first_token:40 inter_token_latency:6",
        "--ui", "none", "--output-artifact-dir", "told", HF_HUB_OFFLINE="",
    )  # fmt: skip
    return {f"aiperf/{name}": work / "told" / name for name in ("profile_export.jsonl", "profile_export_aiperf.json")}


IPERF = """
load: {type: constant, interval: 0.1, num_workers: 1, worker_max_concurrency: 20, stages: [{rate: %d, duration: 1}]}
api: {type: completion, streaming: true}
server: {type: vllm, model_name: m, base_url: %s, ignore_eos: true}
tokenizer: {pretrained_model_name_or_path: tiny}
data: {type: random, input_distribution: {min: 32, max: 32, mean: 32, std_dev: 0, total_count: %d},
       output_distribution: {min: 8, max: 8, mean: 8, std_dev: 0, total_count: %d}}
report: {request_lifecycle: {summary: true, per_stage: true, per_request: true, percentiles: [50, 90, 99]},
         goodput: {constraints: {ttft: 0.04, tpot: 0.006}}}
storage: {local_storage: {path: reports}}
"""


def inference_perf(python: Path, url: str, work: Path) -> dict[str, Path]:
    """A second at a constant rate."""
    (work / "config.yml").write_text(IPERF % (REQUESTS, url, REQUESTS, REQUESTS))
    called(work, python, "-c", "from inference_perf.main import main_cli; main_cli()", "-c", "config.yml")
    names = ("per_request_lifecycle_metrics.json", "summary_lifecycle_metrics.json")
    return {f"inference-perf/{name}": work / "reports" / name for name in names}


LLM_D = """
import sys
from llmd_benchmark_report.native_to_br0_2 import import_vllm_benchmark
import_vllm_benchmark(sys.argv[1]).export_json(sys.argv[2])
"""


def llm_d(python: Path, url: str, work: Path) -> dict[str, Path]:
    """Its converter of vllm's results, here of those beside this file."""
    called(work, python, "-c", LLM_D, HERE / "vllm-aggregate.json", work / "llm-d.json")
    return {"llm-d.json": work / "llm-d.json"}


TOOLS: dict[str, tuple[str, Callable[[Path, str, Path], dict[str, Path]]]] = {
    "vllm": ("vllm", vllm),
    "sglang": ("", sglang),
    "guidellm": ("guidellm", guidellm),
    "aiperf": ("aiperf", aiperf),
    "inference-perf": ("", inference_perf),
    "llm-d": ("llm-d", llm_d),
}
"""Environment under .nightly (none: it must be given), and what runs the tool and says which files it wrote."""


def called(work: Path, *command: str | Path, **env: str) -> None:
    """Run a client in its folder; its words are shown when it fails."""
    done = subprocess.run(
        command, cwd=work, env={**os.environ, **QUIET, "HF_HOME": str(work), **env}, capture_output=True, text=True,
        timeout=280,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


WORDS = ("output", "request_args", "request", "response", "server_info", "prompt", "traceback", "path")
LISTS_OF_WORDS = ("generated_texts",)
UNREAD = ("text", "image", "video", "audio", "tool_call")
"""Fields that hold texts, and distributions of guidellm that no importer reads and that are half of its file."""


def wordless(value: object) -> object:
    """The same without the texts that were sent and answered, and without what nobody reads."""
    if isinstance(value, dict):
        left = {k: v for k, v in value.items() if not (k in UNREAD and isinstance(v, dict))}
        return {k: _wordless(k, v) for k, v in left.items()}
    return [wordless(item) for item in value] if isinstance(value, list) else value


def _wordless(key: str, value: object) -> object:
    if key in LISTS_OF_WORDS and isinstance(value, list):
        return [""] * len(value)
    return None if key in WORDS and isinstance(value, str) else wordless(value)


def kept(text: str, work: Path) -> str:
    """A file of JSON, whole or line by line, without words and without the folder."""
    text = text.replace(str(work), ".").replace(str(ROOT), ".")
    try:
        return json.dumps(wordless(json.loads(text))) + "\n"
    except ValueError:
        return "".join(json.dumps(wordless(json.loads(line))) + "\n" for line in text.splitlines())


def make(name: str, python: Path, tiny: Path) -> None:
    """Run one tool against a server of its own, and keep what it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        shutil.copytree(tiny, work / "tiny")
        server = subprocess.Popen(
            [sys.executable, "-m", "harness", "serve", *SERVING], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
            for target, written in TOOLS[name][1](python, url, work).items():
                (HERE / target).parent.mkdir(exist_ok=True)
                (HERE / target).write_text(kept(written.read_text(), work))
                print(f"{target}: {(HERE / target).stat().st_size:,} bytes")
        finally:
            server.terminate()
            server.wait(20)


def main(arguments: Sequence[str] | None = None) -> None:
    """The tools named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*TOOLS], metavar="NAME")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    given = parser.parse_args(arguments)
    pythons = {name: Path(path) for name, _, path in (text.partition("=") for text in given.python)}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, ROOT / "tests/real/tiny_model.py", folder, "ascii"], check=True)
        for name in given.names:
            make(name, pythons.get(name) or ROOT / ".nightly" / TOOLS[name][0] / "bin" / "python", Path(folder))


if __name__ == "__main__":
    main()
