"""A response cache before a backend: what it answers never reaches the backend, and nothing else changes."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from backends.client.null_server import Timing, running
from backends.sim import Sim
from backends.systems.semantic_cache import CATEGORIES, SemanticCache, semantic_cache
from harness.api import CachedAnswer, Extra, Request, RequestRecord
from harness.data.dependencies import ended_s
from harness.data.records import to_table
from harness.errors import UsageError
from harness.experiments.trial import simulate
from harness.options import Given, RunSpec, run_spec
from harness.runner.run import execute

SMALL = {"model": "opt-13b", "latency": "roofline", "kv": "paged:blocks=400"}
SYSTEMS = (
    {},
    {"replicas": 3, "router": "round-robin"},
    {"replicas": 2, "router": "freeness", "policy": "vllm-v0"},
    {"pp": 2},
    {"prefill": "2", "decode": "1"},
    {"replicas": 2, "fail": "replica:0@2s..4s,requeue"},
)


@dataclass(slots=True)
class SameCluster:
    """Answers every question that was answered before; with `blind` none."""

    search_s: float = 0.0
    after_s: float = 0.0
    blind: bool = False
    _answered: set[int] = field(default_factory=set)

    def lookup(self, request: Request, now_s: float) -> CachedAnswer | None:
        assert now_s >= request.scheduled_s
        known = request.extra.cluster in self._answered and not self.blind
        return CachedAnswer("right", self.after_s) if known else None

    def store(self, request: Request, record: RequestRecord) -> None:
        assert record.cache_hit is None
        if record.status == "ok":
            self._answered.add(request.extra.cluster)


def questions(seed: int, count: int = 120, rate_rps: float = 20.0, clusters: int = 25) -> list[Request]:
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1 / rate_rps, count))
    names = [*CATEGORIES, "other"]
    return [
        Request(i, float(at_s[i]), int(rng.integers(1, 300)), int(rng.integers(1, 40)),
                extra=Extra(category=names[rng.integers(5)], cluster=int(rng.integers(clusters))))
        for i in range(count)
    ]  # fmt: skip


def few_questions(folder: Path) -> str:
    """A workload of 300 requests a second that ask one of eight questions."""
    path = folder / "few.toml"
    path.write_text(
        'about = "few questions"\nrate_rps = 300.0\n[[class]]\nname = "code"\nlengths = "fixed:prompt=20,output=4"\n'
        "clusters = 8\n"
    )
    return str(path)


def served(requests: list[Request], cache: object, **system: object) -> list[RequestRecord]:
    sim = Sim(**SMALL, **system)
    sim.response_cache = cache
    records = list(sim.simulate(iter(requests)))
    sim.cluster.check()
    return records


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_cache_that_finds_nothing_changes_nothing(system: dict[str, object]) -> None:
    """What a cache saves would be mixed with what another event loop does."""
    requests = questions(1)
    without, blind = (to_table(served(requests, cache, **system)) for cache in (None, SameCluster(blind=True)))

    assert without.equals(blind)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("system", SYSTEMS)
def test_it_answers_what_was_answered_before_and_nothing_else(system: dict[str, object], seed: int) -> None:
    """A lookup would see answers that come later, or miss those that were there."""
    requests = questions(seed)
    cache = SameCluster(0.013 * seed, 0.004)
    records = served(requests, cache, **system)
    by_id = {r.id: r for r in requests}
    first_s: dict[int, float] = {}
    for record in records:
        if record.cache_hit is None:
            cluster = by_id[record.request_id].extra.cluster
            first_s[cluster] = min(first_s.get(cluster, np.inf), ended_s(record))
    expected = {r.id for r in requests if first_s.get(r.extra.cluster, np.inf) <= r.scheduled_s}
    hits = {r.request_id: r for r in records if r.cache_hit is not None}

    assert sorted(r.id for r in requests) == sorted(r.request_id for r in records)
    assert expected == hits.keys()
    assert [ended_s(r) for r in records] == sorted(ended_s(r) for r in records)
    for request_id, hit in hits.items():
        assert [pytest.approx(by_id[request_id].scheduled_s + 0.004)] == list(hit.token_s)
        assert (by_id[request_id].output_tokens, None, None) == (hit.output_tokens, hit.replica, hit.arrived_s)
    waits_s = [r.arrived_s - r.scheduled_s for r in records if r.cache_hit is None]
    assert min(waits_s) >= cache.search_s - 1e-12


def test_answers_come_earlier_on_average_from_the_break_even_on() -> None:
    """The published break-even would be arithmetic that no system obeys (S45.d)."""
    rng = np.random.default_rng(0)
    judged = []
    for clusters in (3, 40, 120, 400):
        requests = [
            Request(i, 5.0 * i, 100, 20, extra=Extra(category="x", cluster=int(rng.integers(clusters))))
            for i in range(200)
        ]  # one after the other, all alike
        alone = served(requests, None)
        answer_s = alone[0].token_s[-1] - alone[0].scheduled_s
        for search_s in (0.1 * answer_s, 0.4 * answer_s, 0.8 * answer_s):
            cached = served(requests, SameCluster(search_s, search_s))
            hits = sum(r.cache_hit is not None for r in cached) / len(cached)
            (row,) = semantic_cache(search_s=search_s, answer_s=answer_s)
            gain_s = np.mean([a.token_s[-1] for a in alone]) - np.mean([c.token_s[-1] for c in cached])
            judged.append((hits > row["break_even_share"], gain_s > 0))

    assert {(True, True), (False, False)} == set(judged)


@pytest.mark.parametrize("rules", ["uniform", "category", "adaptive"])
@pytest.mark.parametrize("seed", range(4))
def test_a_semantic_cache_holds_no_more_than_its_entries(rules: str, seed: int) -> None:
    """It would hold more than its memory, or answers would be used that are too old."""
    cache = SemanticCache(rules, entries=30, ttl_s=2.0, seed=seed)
    requests = questions(seed, 400, 60.0, 40)
    for hit in (r for r in served(requests, cache) if r.cache_hit is not None):
        assert hit.cache_hit in ("right", "wrong", "stale")
    cache.check()

    assert "<SemanticCache 0 in flight" in repr(cache)


@pytest.mark.parametrize("strict", [{"threshold": 1.0}, {"ttl_s": 0.0}])
def test_a_cache_without_tolerance_answers_nothing(strict: dict[str, float]) -> None:
    """Wrong or stale answers would be counted where none is possible."""
    assert all(r.cache_hit is None for r in served(questions(2), SemanticCache("uniform", **strict)))


def test_a_live_endpoint_is_spared_what_the_cache_answers(tmp_path) -> None:
    """Requests would reach the server all the same, or be called late because the cache is searched (S45)."""
    with running(Timing(0.02, 0.001, 4)) as url:
        spec = RunSpec(backend=f"openai:url={url}", calibrate=0.0, workload=few_questions(tmp_path), requests=150,
                       response_cache="semantic:search=20ms")  # fmt: skip
        run = execute(spec, out=tmp_path / "run").run
    table = run.requests.to_pandas()
    hits = table["cache_hit"].notna()

    assert [*range(150)] == sorted(table["request_id"])
    assert 10 < hits.sum() == 150 - len(run.http)
    assert {"ok"} == set(table["status"])
    assert table["cap_wait_s"][~hits].min() >= 0.02
    assert (table["sent_s"] - table["scheduled_s"] - table["cap_wait_s"].fillna(0)).max() < 1.0
    assert hits.mean() == run.info.summary.run_metrics["response_hits"].mean


def test_what_is_cut_while_the_cache_searches_has_a_record(tmp_path) -> None:
    """It would go to the endpoint after the end of the run, and be missing from the table."""
    with running(Timing(30.0, 0.001, 4)) as url:
        spec = RunSpec(backend=f"openai:url={url},probe=off,model=null", calibrate=0.0, requests=9, drain=0.0,
                       workload=few_questions(tmp_path), response_cache="semantic:search=200ms")  # fmt: skip
        table = execute(spec, out=tmp_path / "run").run.requests.to_pandas()

    assert [*range(9)] == sorted(table["request_id"])
    assert {"timeout"} == set(table["status"])


def test_a_wall_clock_has_a_cache_before_any_backend(tmp_path) -> None:
    """The engine would be measured without it."""
    spec = RunSpec(backend="null:ttft=5ms", workload=few_questions(tmp_path), requests=150, response_cache="semantic")
    table = execute(spec, out=tmp_path / "run").run.requests.to_pandas()
    hits = table["cache_hit"].notna()

    assert [*range(150)] == sorted(table["request_id"])
    assert 10 < hits.sum() < 150
    assert (4, 0.0) == (table["output_tokens"].max(), table["cap_wait_s"][hits].sum())


def test_what_cannot_have_a_cache_says_so(tmp_path) -> None:
    """A run would be taken for one with a cache before it."""
    with pytest.raises(UsageError, match="--response-cache is kept by one sender"):
        run_spec(Given({"backend": "openai:url=http://x", "response-cache": "semantic", "senders": "2"}))
    with pytest.raises(UsageError, match="No response cache named 'sematic'"):
        simulate(run_spec(Given({"backend": "sim", "response-cache": "sematic"})))


def test_a_hit_has_all_answers_of_its_request() -> None:
    """A request for four answers would get one from the cache, and break the count of tokens."""
    requests = [Request(i, 30.0 * i, 50, 9, extra=Extra(category="x", cluster=0, n=4)) for i in range(2)]
    first, hit = to_table(served(requests, SameCluster())).to_pylist()

    assert ("right", 36, 36, [36]) == (
        *(hit[k] for k in ("cache_hit", "output_tokens", "output_tokens_asked", "token_n")),
    )
    assert first["output_tokens"] == 36
