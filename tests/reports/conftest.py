"""Runs with realistic shapes, made without any backend."""

import base64
import dataclasses
import gzip
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from harness.api import RequestRecord, Slo, Step
from harness.data.codec import encode
from harness.data.folder import Run
from harness.data.records import SCHEDULE, steps_table, to_table
from harness.data.run_json import RunInfo
from harness.data.schedule import digest
from harness.metrics.objective import parse_slo
from harness.metrics.summary import summarize
from reports import _pictures, figures

MakeRun = Callable[..., Run]
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) => violations.push(e.violatedDirective + " " + e.blockedURI));
"""
DRAWN = "[...document.querySelectorAll('[data-figure]')].every((box) => box.querySelector('.main-svg'))"


def _records(n: int, tokens: int, seed: int, failed: int, tags: tuple[str | None, ...]) -> list[RequestRecord]:
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1 / 12.0, n))
    ttft = 0.06 + rng.gamma(2.0, 0.04, n)
    lengths = np.minimum(rng.geometric(1 / tokens, n) + 1, 4 * tokens)
    rows = []
    for i in range(n):
        sent = float(at[i] + rng.exponential(0.0004))
        first = sent + float(ttft[i])
        stamps = first + np.concatenate([[0.0], np.cumsum(rng.normal(0.03, 0.004, lengths[i] - 1).clip(0.005))])
        bad = i < failed
        rows.append(
            RequestRecord(
                request_id=i, scheduled_s=float(at[i]), sent_s=sent, token_n=None, tag=tags[i % len(tags)], replica=0,
                token_s=[] if bad else stamps.tolist(),
                prompt_tokens=int(rng.lognormal(5.5, 1.0)) + 1, output_tokens=0 if bad else int(lengths[i]),
                output_tokens_asked=int(lengths[i]), status=("timeout" if i % 3 else "error") if bad else "ok",
                error="connection refused" if bad else None,
            )
        )  # fmt: skip
    return rows


def _steps(span_s: float, seed: int) -> list[Step]:
    rng = np.random.default_rng(seed)
    rows, at, running = [], 0.0, 4.0
    while at < span_s:
        running = float(np.clip(running + rng.normal(0, 0.6), 0, 24))
        prefill = int(rng.integers(64, 512)) if rng.random() < 0.15 else 0
        took = 0.02 + running * 0.0006 + prefill * 4e-5
        waiting = max(0, int(running) - 16)
        rows.append(
            Step(
                0,
                at,
                at + took,
                prefill,
                int(running),
                int(running) * 300,
                waiting,
                int(running),
                512 - int(running) * 19,
            )
        )
        at += took
    return rows


def _schedule(records: list[RequestRecord]) -> pa.Table:
    rows = [
        {"id": r.request_id, "scheduled_s": r.scheduled_s, "prompt_tokens": r.prompt_tokens, "prefix_ids": [],
         "output_tokens": r.output_tokens_asked, "prefix_block_tokens": 512, "turn": 0, "tag": r.tag, "priority": 0,
         "after": [], "delay_s": 0.0}
        for r in records
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=SCHEDULE)


_BURSTINESS = {
    "gap_cv": 1.02,
    "dispersion": {"1": 0.97, "10": 1.05, "60": None},
    "autocorrelation": {"1": 0.03, "10": -0.05, "60": None},
}


def _info(table: pa.Table, slo: str) -> dict[str, Any]:
    parsed = parse_slo(slo) if slo else Slo()
    return {
        "schema": 1,
        "state": "finished",
        "spec": {"workload": "chatbot", "backend": "engine", "rate": 12.0, "seed": 0, "slo": slo, "goal": 0.9},
        "command": f"bench run --workload chatbot --rate 12 --slo {slo}",
        "versions": {"bench": "0.1.0", "python": "3.11.9", "numpy": "2.4.6"},
        "host": {"machine": "x86_64", "cores": 2, "cpu": "Example CPU"},
        "clock": "wall",
        "started": "2026-01-02T03:04:05.000+00:00",
        "workload": {
            "name": "chatbot", "arrivals": "poisson:rate_rps=12.0", "lengths": "sharegpt", "rate_rps": 12.0,
            "provenance": {"preparation": "DistServe, table 1", "tokenizer": "OPT", "source": "ShareGPT"},
        },
        "backend": {
            "name": "engine", "model": "seeded Llama, 25M parameters", "policy": "sarathi", "kv": "paged",
            "kv_blocks": 512, "executor": "llama", "threads": 2, "gpus": 1,
            "tiers": [{"name": "dram", "queried_tokens": 200, "hit_tokens": 50, "loads": 4, "load_bytes": 3e9,
                       "wait_s": 2.0, "store_bytes": 5e9, "evicted_blocks": 0}],
        },
        "slo": {
            "text": slo, "goal": 0.9,
            "bounds": [dataclasses.asdict(b) for b in parsed.bounds],
        },
        "summary": encode(summarize(table, parsed)),
        "fidelity": {
            "requested_rps": 12.0, "drawn_rps": 11.9, "achieved_rps": 11.9, "scheduled": table.num_rows,
            "sent": table.num_rows, **_BURSTINESS, "drawn": _BURSTINESS, "ks": 0.041, "ks_p": 0.72, "law": "clock",
            "lateness_p50_s": 0.0003, "lateness_p99_s": 0.0019, "lateness_max_s": 0.0024,
            "line": "sending: rate 11.9 of 12 req/s",
        },
        "warnings": [
            {"code": "short", "message": "the run is shorter than five minutes", "remedy": "give --duration 5min"}
        ],
        "verdict": {"valid": True, "reasons": [], "text": "all checks of the run passed"},
    }  # fmt: skip


@pytest.fixture(scope="session")
def make_run() -> MakeRun:
    """Makes a Run of `n` requests; `info` replaces top-level keys of run.json."""

    def make(
        n: int = 240, tokens: int = 40, *, seed: int = 0, failed: int = 3, slo: str = "ttft=0.25,tpot=0.1",
        tags: tuple[str | None, ...] = (None,), steps: bool = True, complete: bool = True, **info: Any,
    ) -> Run:  # fmt: skip
        records = _records(n, tokens, seed, failed, tags)
        table = to_table(records)
        span_s = records[-1].scheduled_s if records else 0.0
        stepped = steps_table(_steps(span_s, seed)) if steps else None
        state = {} if complete else {"state": "running"}
        schedule = _schedule(records)
        sent = {"schedule": {"sha256": digest(schedule), "requests": n, "span_s": span_s}}
        facts = {**_info(table, slo), **sent, **state, **info}
        return Run(Path("bench-runs/demo"), RunInfo.of(facts), table, stepped, schedule, complete)

    return make


def soiled(value: Any, text: str) -> Any:
    """The same object with every text replaced, and keys of unknown names added."""
    if isinstance(value, dict):
        numbers = all(isinstance(v, float | None) for v in value.values())  # a curve has no names
        return {k: soiled(v, text) for k, v in value.items()} | ({} if numbers else {text: text})
    if isinstance(value, list):
        return [soiled(v, text) for v in value]
    return text if isinstance(value, str) else value


def _soiled_table(table: pa.Table, text: str) -> pa.Table:
    """The same table with the text in every column of texts; a status stays, and every other tag."""
    for at, field_ in enumerate(table.schema):
        if pa.types.is_string(field_.type) and field_.name != "status":
            old = table.column(at).to_pylist()
            new = [text if word is not None and word != "plain" else word for word in old]
            table = table.set_column(at, field_, pa.array(new, field_.type))
    return table


@pytest.fixture
def hostile_run(make_run: MakeRun, remote_run: Any) -> Callable[..., Run]:
    """A run, of a remote endpoint if `remote`, with the given text in every foreign field of run.json and tables."""

    def make(text: str, *, remote: bool = False) -> Run:
        run = remote_run() if remote else make_run(120, 20, tags=(text, "plain"))
        bounds = [{"metric": "ttft", "limit": 0.2, "tag": text, "percentile": None},
                  {"metric": "tpot", "limit": 0.1, "tag": None, "percentile": None}]  # fmt: skip
        sound = {"schema": 1, "state": "finished", "slo": {"text": text, "bounds": bounds, "goal": 0.9}}
        stored = encode(run.info)
        info = {key: soiled(value, text) for key, value in stored.items() if key != "summary"} | sound
        if not remote:
            summary = stored["summary"]
            scored = [{**bound, "text": text, "tag": text} for bound in summary["bounds"]]
            info["summary"] = {**summary, "bounds": scored, "binding": text, "slo": text, "classes": {text: 0.5}}
        kept = {name: getattr(run, name) for name in ("requests", "http", "server_metrics")}
        tables = {name: _soiled_table(table, text) for name, table in kept.items() if table is not None}
        path = run.path / text[:40].replace("/", "_").replace("\0", "")
        return dataclasses.replace(run, path=path, info=RunInfo.of(info), complete=True, **tables)

    return make


@pytest.fixture
def content_of() -> Callable[[str], dict[str, Any]]:
    """What a page holds for its script: `figures`, each with `key`, `data` and `layout`, and `dark`."""

    def read(html: str) -> dict[str, Any]:
        [(kind, text)] = re.findall(r'<script type="([^"]*)" id="data">(.*?)</script>', html, re.DOTALL)
        found = json.loads(gzip.decompress(base64.b64decode(text)) if kind == "text/plain" else text)
        assert isinstance(found, dict)
        return found

    return read


def _plain(drawn: Any) -> str:
    return json.dumps(drawn, sort_keys=True, default=np.ndarray.tolist)


def _some(values: Any) -> str:
    """The values of a trace in short: four digits, equal ones once, and of many the first and last three."""
    texts = [f"{value:.4g}" if isinstance(value, float | int) else str(value) for value in np.asarray(values).tolist()]
    counted = [(text.replace("<br>", "/"), len(list(equal))) for text, equal in itertools.groupby(texts)]
    kept = [text if count == 1 else f"{text} x{count}" for text, count in counted]
    return " ".join(kept if len(kept) < 13 else [*kept[:3], f"... {len(texts)} ...", *kept[-3:]])


def _sketch(figure: Any) -> Iterator[str]:
    """A drawing in words: its sentences, axes, lines, areas and notes."""
    if isinstance(figure, str):
        yield figure
        return
    yield figures.caption(figure)
    written, figure = [figure.data, figure.layout], figure.plotly()  # which raises for a property that there is not
    read = [[trace.to_plotly_json() for trace in figure.data], figure.layout.to_plotly_json()]
    del read[1]["template"], read[1]["meta"]
    assert _plain(written) == _plain(read)
    for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
        order, ends = axis.categoryarray, axis.range
        yield f"axis {axis.title.text}: {'any' if ends is None else _some(ends)}{f' {_some(order)}' if order else ''}"
    for trace in figure.data:
        line, marker = (getattr(trace, name, None) for name in ("line", "marker"))
        styles = [
            trace.yaxis,
            getattr(trace, "mode", None),
            getattr(line, "dash", None),
            getattr(marker, "symbol", None),
        ]
        styles = [_some(style) if isinstance(style, tuple) else style for style in styles if style]
        yield f"{trace.type} {trace.name} ({', '.join(styles)})"
        values = {name: getattr(trace, name, None) for name in ("x", "y", "text", "hovertext")}
        yield from (f"  {name} {_some(each)}" for name, each in values.items() if each is not None)
        for name in ("error_x", "error_y"):
            if (bars := getattr(trace, name, None)) is not None and bars.array is not None:
                yield f"  {name} +{_some(bars.array)} -{_some(bars.arrayminus if bars.arrayminus is not None else [])}"
    for shape in figure.layout.shapes:
        ends = [shape.x0, shape.x1], [shape.y0, shape.y1]
        yield " ".join([shape.type, *map(_some, ends), shape.line.dash or "-"])
    yield from (f"note {_some([note.x, note.y])}: {note.text}" for note in figure.layout.annotations)


@pytest.fixture
def sketched(golden: Callable[[str, str], None]) -> Callable[[str, Mapping[str, Any]], None]:
    """Compares drawings in words, by the reason for each, with golden/<name>."""

    def check(name: str, drawings: Mapping[str, Any]) -> None:
        golden(
            name, "\n\n".join("\n".join([f"# {reason}", *_sketch(each)]) for reason, each in drawings.items()) + "\n"
        )

    return check


@dataclass(slots=True)
class Opened:
    """A page in the browser (`page`, of playwright), its console, and the requests it made."""

    page: Any
    console: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    def until(self, script: str) -> None:
        """Wait until the script is true. (The page's own policy forbids what playwright's waiting would evaluate.)"""
        for _ in range(600):
            if self.page.evaluate(script):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never true: {script}; the console shows {self.console}")

    def unfold(self) -> None:
        """Opens every section and waits until all figures are drawn."""
        self.page.evaluate("document.querySelectorAll('details.section').forEach((one) => one.open = true)")
        self.until(DRAWN)

    def drawn(self) -> list[str]:
        """Keys of the figures that hold a drawing."""
        script = "(all) => all.filter((b) => b.querySelector('.main-svg')).map((b) => b.dataset.figure)"
        found: list[str] = self.page.locator("[data-figure]").evaluate_all(script)
        return found

    def untroubled(self) -> None:
        """The page drew without an error, without asking for anything, and without a link or a picture of others."""
        assert [] == self.console
        assert [] == self.requested
        assert [] == self.page.evaluate("window.violations")
        assert self.page.locator(".figure a[href], img").count() == 0
        pictures = "(all) => all.map((i) => i.getAttribute('xlink:href') || i.getAttribute('href') || '')"
        assert all(url.startswith("data:") for url in self.page.locator("image").evaluate_all(pictures))  # heat maps


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The Chromium of this machine, which can resolve no host; skips where there is none.

    Note: not for the whole session, because playwright keeps an event loop running in the thread of the tests, and
    whatever calls asyncio.run after it would fail.
    """
    found = _pictures.found()
    if found is None:
        pytest.skip("no Chromium on this machine; with 'apt-get install chromium' the page is tried in a browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-gpu"]
        )
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens HTML text (or a file) and waits until every figure is drawn, unless `wait` is False.

    `dark`, `js`, `width` and `height` are the reader's.
    """
    contexts = []

    def look(
        html: str | Path, *, dark: bool = False, js: bool = True, wait: bool = True, width: int = 1200,
        height: int = 700,
    ) -> Opened:  # fmt: skip
        path = html if isinstance(html, Path) else tmp_path / f"page-{len(contexts)}.html"
        if not isinstance(html, Path):
            path.write_text(html, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light",
            java_script_enabled=js, offline=True,
        )  # fmt: skip
        contexts.append(context)
        context.add_init_script(WATCH)
        found = Opened(context.new_page())
        found.page.on("console", lambda message: found.console.append(message.text))
        found.page.on("pageerror", lambda error: found.console.append(str(error)))
        found.page.on("request", lambda request: found.requested.append(request.url))
        found.page.goto(path.resolve().as_uri())
        found.requested[:] = [url for url in found.requested if url != path.resolve().as_uri()]
        if wait and js:
            found.until(DRAWN)
        return found

    yield look
    for context in contexts:
        context.close()
