"""A command of another load generator becomes one of bench that runs, and no flag is dropped silently."""

import json
import shlex
from pathlib import Path

import click
import pytest

from harness import options
from harness.cli import _commands, main
from harness.cli._options import given
from harness.experiments.commands import tools, translate
from harness.runner.plan import Plan, plan

VLLM = "vllm bench serve --model m --dataset-name random"
LOCAL = "openai:url=http://127.0.0.1:8000/v1"
PERF = """
load: {type: constant, interval: 0.1, stages: [{rate: 10, duration: 60}, {rate: 20, duration: 30}]}
api: {type: chat, streaming: true}
server: {type: vllm, model_name: m, base_url: "http://h:8000", ignore_eos: true}
tokenizer: {pretrained_model_name_or_path: tiny}
data: {type: random, input_distribution: {min: 8, max: 64, mean: 32, std_dev: 4, total_count: 3},
       output_distribution: {mean: 8, std_dev: 0}}
report: {request_lifecycle: {summary: true}, goodput: {constraints: {ttft: 0.04, tpot: 0.006}}}
"""
CASES = {
    f"{VLLM} --request-rate 10 --num-prompts 300 --goodput ttft:250 tpot:100 e2el:2000": {
        "--backend": f"{LOCAL},model=m,api=completions",
        "--workload": "fixed:prompt=1024,output=128",
        "--rate": "10",
        "--arrivals": "poisson",
        "--requests": "300",
        "--output-lengths": "server",
        "--slo": "ttft=0.25,tpot=0.1,e2e=2",
    },
    f"{VLLM} --request-rate 4 --burstiness 0.25 --ignore-eos --random-range-ratio 0.5 --random-prefix-len 64": {
        "--arrivals": "gamma:cv=2",
        "--workload": "uniform:prompt_min=512,prompt_max=1536,output_min=64,output_max=192",
        "--prefixes": "shared:count=1,tokens=64",
        "--output-lengths": "exact",
        "--requests": "1000",
    },
    f"{VLLM} --max-concurrency 16 --num_prompts=64 --seed 3 --temperature 0 --extra-body '{{\"a b\": 1}}'": {
        "--arrivals": "closed:users=16,think=0s",
        "--requests": "64",
        "--seed": "3",
        "--extra-body": '{"temperature": 0, "a b": 1}',
    },
    f"{VLLM} --num-prompts 8": {"--arrivals": "closed:users=8,think=0s"},
    f"{VLLM} --burstiness inf --request-rate 2 --num-prompts 90 --num-warmups 10 --header a=b c=d": {
        "--arrivals": "constant",
        "--requests": "100",
        "--warmup": "10",
        "--header": "a=b\nc=d",
    },
    f"{VLLM} --ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 9 --num-prompts 50": {
        "--arrivals": "ramp:from=1,to=9,over=10s,cv=1"
    },
    "vllm bench serve --backend openai-chat --base-url https://h/openai --endpoint /v1/chat/completions --insecure "
    "--dataset-name sharegpt --dataset-path s.json --request-rate 1": {
        "--backend": "openai:url=https://h/openai/v1,insecure=true",
        "--workload": "sharegpt",
    },
    "vllm bench serve --dataset-name prefix_repetition --prefix-repetition-num-prefixes 4 --request-rate 1": {
        "--prefixes": "shared:count=4,tokens=256,zipf=0",
        "--workload": "fixed:prompt=256,output=128",
    },
    "HF_HUB_OFFLINE=1 python3 -m sglang.bench_serving --backend sglang-oai-chat --dataset-name random "
    "--random-input-len 100 --random-output-len 10 --random-range-ratio 0.5 --request-rate 2 --disable-ignore-eos": {
        "--backend": "openai:url=http://127.0.0.1:30000/v1",
        "--workload": "uniform:prompt_min=50,prompt_max=100,output_min=5,output_max=10",
        "--output-lengths": "server",
        "--extra-body": '{"temperature": 0}',
    },
    "aiperf profile -m m -u h:8000 --endpoint-type chat --streaming --request-rate 20 --arrival-pattern gamma "
    "--arrival-smoothness 0.25 --benchmark-duration 60 --isl 500 --isl-stddev 50 --osl 64 "
    "--goodput 'time_to_first_token:40 inter_token_latency:6' --extra-inputs ignore_eos:true top_p:0.9": {
        "--backend": "openai:url=http://h:8000/v1,model=m",
        "--workload": "normal:prompt_mean=500,prompt_cv=0.1,prompt_cap=none,"
        "output_mean=64,output_cv=1e-06,output_cap=none",
        "--arrivals": "gamma:cv=2",
        "--duration": "60s",
        "--output-lengths": "exact",
        "--extra-body": '{"top_p": 0.9}',
        "--slo": "ttft=0.04,tpot=0.006",
    },
    "genai-perf profile -m m --concurrency 8 --synthetic-input-tokens-mean 128 --output-tokens-mean 64 -- -v": {
        "--arrivals": "closed:users=8,think=0s",
        "--requests": "16",
    },
    "aiperf profile -m m --search-recipe max-goodput-under-slo --ttft-sla-ms 500 --slo-attainment-fraction 0.95 "
    "--isl 9 --osl 9": {"capacity": "", "--slo": "ttft=0.5", "--goal": "0.95", "--arrivals": "poisson"},
    "guidellm run --backend kind=openai_http,target=http://h:8000,model=m --profile kind=poisson,rate=5 "
    "--constraint kind=max_requests,count=50 --data kind=synthetic_text,prompt_tokens=256,output_tokens=128 "
    '--metrics \'{"kind": "generative", "slo": {"ttft_ms": 2000}}\'': {
        "--rate": "5",
        "--arrivals": "poisson",
        "--requests": "50",
        "--workload": "fixed:prompt=256,output=128",
        "--slo": "ttft=2",
    },
    "guidellm benchmark --target http://h:1 --rate-type constant --rate 5,10 --max-seconds 60 "
    "--data prompt_tokens=8,output_tokens=4": {"sweep": "", "--rate": "5,10", "--duration": "60s"},
    "guidellm run --profile kind=sweep --data prompt_tokens=8,output_tokens=4": {
        "capacity": "",
        "--slo": "ttft=0.25,tpot=0.1",
    },
    "inference-perf -c config.yml": {
        "sweep": "",
        "--rate": "10,20",
        "--duration": "60s",
        "--workload": "normal:prompt_mean=32,prompt_cv=0.125,prompt_cap=none,"
        "output_mean=8,output_cv=1e-06,output_cap=none",
        "--slo": "ttft=0.04,tpot=0.006",
    },
}  # fmt: skip


def planned(words: list[str]) -> tuple[str, Plan]:
    """What the printed command would run, as far as it goes without a server."""
    assert words[0] == "bench"
    command = _commands.bench.get_command(click.Context(_commands.bench), words[1])
    assert command is not None
    params = dict(command.make_context(words[1], words[2:]).params)
    if words[1] == "sweep":
        params["rate"] = float(params["rate"].partition(",")[0])
    if words[1] == "capacity":  # a search decides itself how many it sends
        params["requests"] = 20
    names = {name.replace("-", "_") for name in options.OPTIONS}
    params["goal"] = float(params["goal"]) if isinstance(params.get("goal"), str) else params.get("goal")
    spec = options.run_spec(given({k: v for k, v in params.items() if k in names}))
    return words[1], plan(spec)


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yml").write_text(PERF)


@pytest.mark.parametrize("text", CASES)
def test_the_printed_command_is_one_that_bench_runs(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A user would paste a line that ends in an error, or that sends other traffic."""
    assert 0 == main(["import-command", text])
    words = shlex.split(capsys.readouterr().out)
    name, made = planned(words)
    values: dict[str, str] = {}
    for option, value in zip(words[2::2], words[3::2], strict=True):
        values[option] = f"{values[option]}\n{value}" if option in values else value

    wanted = dict(CASES[text])
    for command in ("sweep", "capacity"):
        if command in wanted:
            assert command == name
            del wanted[command]
    assert wanted.items() <= values.items()
    assert made.backend is not None


def test_the_law_of_the_gaps_is_that_of_vllm() -> None:
    """vllm's burstiness is the shape of its gamma law: gaps of shape k have a coefficient of variation of k ** -0.5."""
    for burstiness in (0.2, 0.7, 3.0):
        words = translate(f"{VLLM} --request-rate 5 --burstiness {burstiness}").words
        cv = float(words[words.index("--arrivals") + 1].removeprefix("gamma:cv="))
        assert 1 / cv**2 == pytest.approx(burstiness, rel=1e-5)


def test_no_flag_is_dropped_silently() -> None:
    """A limit that is ignored would make another experiment of the command."""
    found = translate(
        f"{VLLM} --request-rate 5 --max-concurrency 9 --save-result --hf-split x --made-up 1 2 --random-mm-q"
    )

    assert found.unknown == ("--made-up 1 2",)
    assert {"--max-concurrency 9", "--save-result", "--hf-split x", "--random-mm-q"} == {*found.lost}
    assert "when it is due" in found.lost["--max-concurrency 9"]
    perf = translate("inference-perf -c config.yml --load.type poisson --what.ever 3")
    assert ("what.ever 3",) == perf.unknown
    assert "data.input_distribution from 8 to 64" in perf.lost


def test_a_key_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["import-command", "aiperf profile -m m --api-key secret-1 --isl 3 --osl 3", "--json"])
    printed = capsys.readouterr().out
    assert "secret-1" not in printed
    assert "OPENAI_API_KEY" in printed
    assert "command" == json.loads(printed)[0]["what"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("vllm bench serv --model x", "Did you mean 'vllm bench serve'?"),
        ("wrk -t2 http://x", "no command of a load generator"),
        ("vllm bench serve 'x", "No closing quotation"),
        ("vllm bench serve extra --model m", "'extra' stands before the first flag"),
        (f"{VLLM} --request-rate ten", "--request-rate must be a number, got 'ten'"),
        (f"{VLLM} --num-prompts 1.5", "--num-prompts must be a whole number"),
        (f"{VLLM} --request-rate", "--request-rate has no value"),
        (f"{VLLM} --request-rate -1", "must be above 0"),
        (f"{VLLM} --goodput ttft", "--goodput must be METRIC:MILLISECONDS"),
        (f"{VLLM} --random-range-ratio 2", "--random-range-ratio must be in [0, 1)"),
        (f"{VLLM} --extra-body [1]", "--extra-body must be a JSON object"),
        ("inference-perf -c nowhere.yml", "'nowhere.yml' cannot be read"),
        ("inference-perf", "give 'inference-perf -c config.yml'"),
        ("aiperf profile --config x.yml", "configuration file is not read"),
    ],
)
def test_a_wrong_command_is_answered_by_a_sentence(
    text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["import-command", text])
    assert sentence in capsys.readouterr().err


def test_every_tool_has_a_profile_and_reasons() -> None:
    """A note would name a profile that 'bench slo' does not know."""
    for name, facts in tools().items():
        assert facts["programs"], name
        assert facts["meanings"], name
        assert all(row["why"] and row["flags"] for row in facts["none"]), name
        program = facts["programs"][0]
        if name != "inference-perf":
            assert any("--profile" in note for note in translate(f"{program} --x 1").notes)
