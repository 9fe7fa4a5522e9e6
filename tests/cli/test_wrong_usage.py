"""Whatever is typed wrongly is answered by one sentence, the right exit code, and nothing on disk."""

from pathlib import Path

import pytest

from harness.cli import main
from harness.removed import REMOVED

RUN_JSON = '{"schema": 1, "state": "finished", "spec": {"workload": "chatbot", "colour": "red"}}'

# command line -> exit code, begin of the sentence, what it must name (the nearest known name, or what to do)
WRONG: list[tuple[str, int, str, str]] = [
    ("rnu", 2, "No command named 'rnu'.", "Did you mean 'run'?"),
    ("--workload chatbot", 2, "No option '--workload'.", "bench --help"),
    ("run chatbot", 2, "'chatbot' is not the URL of a server, such as http://HOST:8000", "--workload chatbot"),
    ("run http://127.0.0.1:1 --backend sim", 2, "The backend is given twice", "leave one out"),
    ("run http://127.0.0.1:0", 2, "'http://127.0.0.1:0' is not the URL of a server", "a port from 1 to 65535"),
    ("run --url http://127.0.0.1:1", 2, "No option '--url'", "'bench run http://HOST:PORT'"),
    ("compare --endpoint x", 2, "No option '--endpoint'", "--base http://HOST:PORT --head http://HOST:PORT"),
    ("fit --target x", 2, "No option '--target'", "'bench fit --url http://HOST:PORT'"),
    ("run http://127.0.0.1:1 --header Host:c", 2, "The header Host is set by the client", "leave it out"),
    ("run --backend sim --wait 1s", 2, "--wait is for a server", "'sim' needs none"),
    ("fit --steps a --wait 1s", 2, "--wait belongs to --url", "leave it out"),
    ("compare a b --wait 1s", 2, "--wait is for runs that are made", "--base"),
    ("run --wrkload chatbot", 2, "No option '--wrkload'.", "Did you mean '--workload'?"),
    ("run --rate", 2, "Option '--rate' requires an argument", "--help"),
    ("run --workload chatbto", 2, "No workload", "Did you mean 'chatbot'?"),
    ("run --backend simm", 2, "No backend named 'simm'.", "Did you mean 'sim'?"),
    ("run --backend null:tfft=1", 2, "'null:tfft=1': null has no argument 'tfft'.", "Did you mean 'ttft_s'?"),
    ("run --backend null --policy sarathi", 2, "--policy does not apply to the backend 'null'", "ttft_s"),
    ("run --backend sim --policy saratih", 2, "No policy named 'saratih'.", "Did you mean 'sarathi'?"),
    ("run --backend sim:policy=orca --policy orca", 2, "policy is given twice", "--backend 'sim:policy=orca'"),
    ("run --backend sim --model opt-13", 2, "No model named 'opt-13'.", "Did you mean 'opt-13b'?"),
    ("run --backend sim --hardware a100", 2, "No hardware named 'a100'.", "Did you mean 'a100-40g' or 'a100-80g'?"),
    ("run --backend sim --replicas 0", 2, "--replicas must be a whole number from 1 on, got '0'", "1"),
    ("run --backend sim:dp=2 --latency linear", 2, "latency=linear knows no dp; leave out dp=2,", "operators"),
    ("run --backend sim:ep=2", 2, "ep=2 divides experts, and opt-13b has none;", "leave out ep"),
    ("run --backend sim --prefill 1:dp=2 --decode 1 --latency abc:vllm", 2, "latency=abc knows no dp;", "roofline"),
    ("run --backend sim:dp=2 --prefill 1 --decode 1", 2, "dp is that of replicas alike;", "prefill=2:tp=2"),
    ("run --backend engine --prefill 1:ep=2 --decode 1", 2, "The engine does not divide", "leave out ep"),
    ("run --backend sim --model opt-175b", 2, "opt-175b", "tp"),
    ("run --backend null --rate fast", 2, "--rate must be a number of requests per second above 0", "'fast'"),
    ("run --backend null --rate 1e300", 2, "--rate must lie between 0.000001 and 1,000,000", "1e+300"),
    ("run --backend null --requests 0", 2, "--requests must be a whole number from 1 on", "'0'"),
    ("run --backend null --duration 60parsecs", 2, "--duration must be a duration such as", "60s"),
    ("run --backend null --duration 0", 2, "--duration must be longer than 0 s", "'0'"),
    ("run --backend null --requests 99999999999999", 2, "A run can hold 100,000,000 requests", "a smaller one"),
    ("run --backend null --duration 1us", 2, "No request is due in the first 1e-06 s", "--duration"),
    ("run --backend http://127.0.0.1:1/v1", 3, "No server answers at http://127.0.0.1:1/v1", "--wait 10min"),
    ("run --backend null --header X-A=b", 2, "--header does not apply to the backend 'null'", "ttft_s"),
    ("run --backend openai:url=http://127.0.0.1:1/v1 --header X-A", 2, "'X-A' is not a header", "'Name: value'"),
    (
        "run --backend openai:url=http://127.0.0.1:1/v1 --extra-body [1]",
        2,
        "--extra-body must be a JSON object",
        "object",
    ),
    ("run --backend openai:url=http://127.0.0.1:1/v1 --senders two", 2, "--senders must be 'auto' or", "'two'"),
    ("sender", 2, "'bench sender' needs a pipe", "bench run --senders ssh:HOST"),
    ("run --backend openai:url=http://127.0.0.1:1/v1 --senders 0", 2, "--senders must be 'auto' or", "'0'"),
    (
        "run --backend openai:url=http://127.0.0.1:1/v1,stream=false --slo ttft=1,e2e=2",
        2,
        "--slo 'ttft=1': with stream=false there are no token times",
        "e2e",
    ),
    ("run --backend openai:url=ftp://127.0.0.1/v1", 2, "'ftp://127.0.0.1/v1'", "http://"),
    (
        "capacity --backend sim --workload chatbot --slo ttft=1 --tolerance 0",
        2,
        "--tolerance must be a share above 0",
        "0.03 or 3%",
    ),
    ("run --backend null --slo ttfb=0.25", 2, "", "Did you mean 'ttft'?"),
    ("run --backend null --slo ttft@long=2", 2, "--slo 'ttft@long=2': no request to send is of class 'long'", "no cl"),
    ("run --backend null --workload deck-slots --slo p99:ttft@long=2", 2, "--slo 'p99:ttft@long=2': no", "'long'"),
    ("run --backend null --workload fixed --requests 2 --fail-under 0.9", 2, "--fail-under needs an SLO", "--slo"),
    ("run --backend null --trace missing.csv", 2, "", "missing.csv"),
    ("run --backend null --trace trace.csv --workload chatbot", 2, "--workload and --trace exclude each other", "one"),
    ("run --backend null --trace trace.csv --rate 3", 2, "--rate does not go with --trace", "--scale"),
    ("run --backend null --trace trace.csv --reader azur", 2, "No trace reader named 'azur'.", "'azure'"),
    ("run --backend null --trace trace.csv --start 9 --stop 5", 2, "--stop must lie after --start", "9"),
    ("run --backend null --reader azure", 2, "--reader belongs to a trace", "--trace FILE"),
    ("run --backend null --limit 5", 2, "--limit belongs to a trace", "--trace FILE"),
    ("run --config missing.toml", 2, "No configuration 'missing.toml'", "bench init"),
    ("run --config image.toml", 2, "'image.toml' cannot be read as text", "utf-8"),
    ("run --config strange", 2, "'strange/run.json' is not JSON", "line 1"),
    ("run --config full", 2, "'full' is a folder without run.json", "the folder of a run"),
    ("run --config newer", 2, "'newer/run.json' has schema 99, this bench reads up to 2", "newer bench"),
    ("run --config strange.json", 2, "'strange.json' was not written by 'bench run'", "spec"),
    ("run --config run.json", 2, "No option 'colour' (in 'run.json').", "Known: "),
    ("run --backend null --requests 2 --out trace.csv", 2, "'trace.csv' is a file", "--out"),
    ("run --backend null --requests 2 --out full", 2, "'full' holds", "empty folder"),
    ("run --backend null --requests 2 --out trace.csv/x", 2, "'trace.csv/x' cannot be made", "directory"),
    ("report", 2, "Missing argument 'RUN...'", "bench report --help"),
    ("report nowhere", 2, "No run in 'nowhere'", "does not exist"),
    ("report full", 2, "No run in 'full'", "run.json"),
    ("report full --format text --open", 2, "--open opens a report in the browser", "html"),
    ("list backend", 2, "No kind named 'backend'.", "Did you mean 'backends'?"),
    ("explain", 2, "Missing argument 'NAME'", "bench explain --help"),
    ("agents --backend sim --horizon -1", 2, "--horizon must be longer than 0 s, got '-1'", "longer"),
    ("explain goodputt", 2, "No term or plug-in named 'goodputt'.", "Did you mean 'goodput'?"),
    ("init broken.toml", 2, "'broken.toml' exists and is left alone", "another"),
    ("init no/such/folder.toml", 2, "'no/such/folder.toml' cannot be written", "No such file"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trace, broken configurations and a folder that is no run."""
    monkeypatch.chdir(tmp_path)
    files = {
        "trace.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n",
        "broken.toml": "rate = = 3",
        "strange.json": "{}",
        "run.json": RUN_JSON,
        "full/notes.txt": "mine",
        "strange/run.json": "[1, 2",
        "newer/run.json": '{"schema": 99, "spec": {}}',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "image.toml").write_bytes(b"\x89PNG\xff")
    return tmp_path


@pytest.mark.parametrize(("line", "code", "begin", "names"), WRONG, ids=[w[0] for w in WRONG])
def test_wrong_line_gets_one_sentence(
    line: str, code: int, begin: str, names: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error would be answered by a traceback, a wrong exit code, or half a run on disk."""
    before = sorted(place.rglob("*"))

    found = main(line.split())
    out, err = capsys.readouterr()

    assert code == found, err
    assert err.startswith(f"bench: {begin}"), err
    assert names in err
    assert err.count("\n") == 1
    assert err.endswith((".\n", "?\n"))
    assert "Traceback" not in err
    assert out == ""
    assert before == sorted(place.rglob("*"))


@pytest.mark.parametrize(("what", "name"), REMOVED)
def test_what_was_removed_is_refused_with_what_takes_its_place(
    what: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script of an earlier version would end with a guess at a name."""
    run, table = str(tmp_path / "run"), tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n", encoding="utf-8")
    arguments = {
        "command": [name],
        "condition": ["capacity", "--backend", "sim", "--conditions", name],
        "option": ["run", name],
        "option of bench compare": ["compare", run, run, name, "file"],
        "option of bench slo": ["slo", run, name],
        "option of bench explain": ["explain", "chatbot", name, "page.html"],
        "trace command": ["trace", name],
        "option of bench trace generate": ["trace", "generate", "chatbot", "-o", "b.csv", name, "2"],
        "option of bench trace convert": ["trace", "convert", "a.csv", "-o", "b.csv", name],
        "argument": ["run", "--backend", f"sim:{name}=x"],
        "probe": ["run", "--backend", f"openai:url=http://127.0.0.1:1,probe={name}"],
        "route": ["run", "--backend", f"openai:url=http://127.0.0.1:1,route={name}"],
        "trace reader": ["run", "--backend", "sim", "--trace", str(table), "--reader", name],
        "policy": ["run", "--backend", "sim", "--policy", name],
        "argument of longbench": ["run", "--backend", "sim", "--lengths", f"longbench:{name}=x"],
        "lengths": ["run", "--backend", "sim", "--lengths", name],
        "placement algorithm": ["place", "--algorithm", name],
        "arrivals": ["run", "--backend", "sim", "--arrivals", name],
        "fault": ["serve", "--backend", "null", "--fault", f"{name}:every=2"],
        "format": ["report", run, "--format", name],
        "figure": ["report", run, "--figure", name],
        "section": ["report", run, "--sections", name],
        "definition profile": ["slo", run, "--profile", name],
        "term or plug-in": ["explain", name],
    }[what]
    if run in arguments:
        assert 0 == main(["run", "--backend", "sim", "--requests", "20", "--no-html", "--quiet", "--out", run])

    assert 2 == main(arguments)
    assert REMOVED[what, name] in capsys.readouterr().err
