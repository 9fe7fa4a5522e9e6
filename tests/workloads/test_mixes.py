"""Mixes: shares, bounds and priorities of classes, streams that leave one another alone, and the order of the whole."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from harness.data.schedule import Schedule
from harness.errors import UsageError
from harness.metrics.objective import parse_slo
from workloads import blend, catalog, mixed
from workloads.arrivals.builtin import Constant, Poisson
from workloads.blend import Blend
from workloads.lengths.builtin import Fixed, Lognormal
from workloads.mixed import Mixed
from workloads.sessions.builtin import Burstgpt
from workloads.sessions.compound import Compound

CHAT = Mixed(Poisson(1.0), Lognormal(), tag="chat", number=0)
DIALOG = Mixed(Poisson(0.5), Lognormal(), Burstgpt(think_scale=0.01), tag="dialog", number=1, priority=2)
AGENT = Mixed(Poisson(0.3), Lognormal(), Compound("1/3/1"), tag="agent", slo={"task": 60.0}, number=2)


def rows(workload: Any, tag: str, requests: int = 600, seed: int = 0) -> dict[str, list[Any]]:
    """What a class does, without the numbers that depend on the other classes."""
    table = Schedule.draw(workload, seed=seed, requests=requests).table
    names = ["scheduled_s", "prompt_tokens", "output_tokens", "session", "turn", "prefix_ids", "delay_s"]
    found: dict[str, list[Any]] = table.filter(pc.equal(table["tag"], tag)).select(names).to_pydict()
    return found


def test_ids_follow_the_order_of_time_and_links_are_kept() -> None:
    """If this failed, follow-ups would wait for the answers of strangers."""
    requests = list(Schedule.draw(Blend((CHAT, DIALOG, AGENT)), seed=0, requests=800))
    at = {r.id: r for r in requests}
    linked = [(r, at[p]) for r in requests for p in r.after]

    assert list(range(len(requests))) == [r.id for r in requests]
    assert all(a.scheduled_s <= b.scheduled_s for a, b in zip(requests, requests[1:], strict=False))
    assert len(linked) > 100
    assert all((r.tag, r.session, r.turn - 1) == (p.tag, p.session, p.turn) for r, p in linked)
    assert all(r.after or not r.turn or r.tag == "dialog" for r in requests)


def test_a_class_more_changes_no_other_class() -> None:
    """If this failed, mixes could not be compared class by class."""
    alone, three = rows(Blend((CHAT, DIALOG)), "dialog", 300), rows(Blend((CHAT, DIALOG, AGENT)), "dialog", 600)
    shared = min(len(alone["turn"]), len(three["turn"]))

    assert shared > 50
    assert {name: values[:shared] for name, values in alone.items()} == {n: v[:shared] for n, v in three.items()}


def test_offline_requests_are_stored_as_such(tmp_path: Path) -> None:
    """A run that is repeated from its schedule would serve requests that no one waits for as the others."""
    batch = Mixed(Poisson(1.0), Lognormal(), tag="batch", number=1, offline=True)
    schedule = Schedule.draw(Blend((CHAT, batch)), seed=0, requests=60)
    schedule.save(tmp_path / "schedule.parquet")
    offline = {(r.tag, r.extra is not None and r.extra.offline) for r in Schedule.load(tmp_path / "schedule.parquet")}

    assert {("chat", False), ("batch", True)} == offline


def test_bounds_and_priorities_travel_with_their_class() -> None:
    """If this failed, a scheduler could not tell who matters, or when a task must be done."""
    table = Schedule.draw(Blend((CHAT, DIALOG, AGENT)), seed=0, requests=600).table
    of = {tag: table.filter(pc.equal(table["tag"], tag)) for tag in ("chat", "dialog", "agent")}

    assert [0] == of["chat"]["priority"].unique().to_pylist()
    assert [2] == of["dialog"]["priority"].unique().to_pylist()
    assert [60.0] == of["agent"]["slo_task_s"].unique().to_pylist()
    assert [None] == of["chat"]["slo_task_s"].unique().to_pylist()
    assert [None] == of["chat"]["session"].unique().to_pylist()
    assert not set(of["dialog"]["session"].to_pylist()) & set(of["agent"]["session"].to_pylist())


@pytest.mark.parametrize("shared", [None, Poisson(3.0)])
@pytest.mark.parametrize(("first", "most", "split"), [(1, 1, 1), (7, 50, 3), (4096, 4096, 100_000)])
def test_a_mix_does_not_depend_on_how_much_is_drawn_at_a_time(
    monkeypatch: pytest.MonkeyPatch, shared: Poisson | None, first: int, most: int, split: int
) -> None:
    """If this failed, a seed would not name one schedule (G1)."""
    workload = Blend((CHAT, DIALOG, AGENT), shared, (3, 2, 1) if shared else ())
    whole = Schedule.draw(workload, seed=5, requests=400)
    monkeypatch.setattr(mixed, "FIRST_CHUNK", first)
    monkeypatch.setattr(blend, "LEAST_CHUNK", first)
    monkeypatch.setattr(mixed, "CHUNK", most)
    monkeypatch.setattr(blend, "SPLIT", split)

    assert whole.sha256 == Schedule.draw(workload, seed=5, requests=400).sha256


def test_a_rare_class_does_not_make_a_mix_draw_hundreds_of_thousands_of_arrivals() -> None:
    """The first request would leave after seconds, the later the rarer one of the classes is."""
    taken = 0

    class Counted(Poisson):
        def times(self, rng: np.random.Generator) -> Iterator[float]:
            nonlocal taken
            for at_s in Poisson.times(self, rng):
                taken += 1
                yield at_s

    classes = (CHAT, Mixed(Poisson(1.0), Fixed(), tag="rare", number=1))
    next(Blend(classes, Counted(10.0), (999.0, 1.0)).start(np.random.default_rng(0)))

    assert taken < 50_000


def test_shared_arrivals_are_split_completely() -> None:
    """If this failed, a burst that hits all classes at once would be lost, or sent twice."""
    classes = (CHAT, Mixed(Poisson(1.0), Fixed(), tag="other", number=1))
    table = Schedule.draw(Blend(classes, Constant(10.0), (3.0, 1.0)), seed=0, requests=20_000).table
    chat = pc.equal(table["tag"], "chat").to_numpy()

    np.testing.assert_allclose(0.1, np.diff(table["scheduled_s"].to_numpy()))
    assert 0.75 == pytest.approx(chat.mean(), abs=4 * np.sqrt(0.75 * 0.25 / 20_000))


def test_equal_times_of_two_classes_come_in_the_order_of_the_classes() -> None:
    """If this failed, the order of a burst would depend on chunks."""
    classes = (Mixed(Constant(1.0), Fixed(), tag="a"), Mixed(Constant(1.0), Fixed(), tag="b", number=1))

    assert ["a", "b"] * 20 == Schedule.draw(Blend(classes), seed=0, requests=40).table["tag"].to_pylist()


def test_classes_that_end_leave_the_others_going() -> None:
    """If this failed, a mix would stop with its shortest class, or never."""
    ended = [iter([table(0.0, 2.0)]), iter([table(1.0, 1.5), table(2.0, 9.0)]), iter([])]
    whole = pa.concat_tables(blend.merged(ended))

    assert [0.0, 1.0, 1.5, 2.0, 2.0, 9.0] == whole["scheduled_s"].to_pylist()
    assert list(range(6)) == whole["id"].to_pylist()


def table(*at_s: float) -> pa.Table:
    n = len(at_s)
    return mixed.schedule_chunk(
        n, id=np.arange(n), scheduled_s=np.array(at_s), prompt_tokens=np.ones(n, int), output_tokens=np.ones(n, int)
    )


PRESET = """
about = "two"
rate_rps = 6.0
shares_of = "{of}"
[[class]]
name = "short"
share = 1
lengths = "fixed:prompt=10,output=5"
slo = {{ ttft = 0.5, "p99:tpot" = 0.1 }}
[[class]]
name = "tasks"
share = 1
lengths = "fixed:prompt=10,output=5"
sessions = "fixed:turns=3,think=0.1s"
deadline_s = 9
"""


@pytest.mark.parametrize(("of", "share"), [("requests", 0.5), ("arrivals", 0.25)])
def test_shares_count_what_they_say_and_the_rate_is_that_of_requests(tmp_path: Path, of: str, share: float) -> None:
    """If this failed, a mix of 1:1 would be another one, or come faster than requested."""
    (tmp_path / "two.toml").write_text(PRESET.format(of=of))
    loaded = catalog.load(str(tmp_path / "two.toml"))
    drawn = Schedule.draw(loaded.workload, seed=1, requests=30_000)

    assert 6.0 == loaded.rate_rps
    assert 6.0 == pytest.approx(len(drawn) / drawn.span_s, rel=0.03)
    assert share == pytest.approx(pc.mean(pc.equal(drawn.table["tag"], "short").cast(pa.int8())).as_py(), abs=0.02)
    assert "ttft@short=0.5,p99:tpot@short=0.1" == loaded.slo_text
    assert parse_slo(loaded.slo_text).bounds
    assert {None, 9.0} == set(drawn.table["slo_task_s"].unique().to_pylist())


def test_another_rate_or_arrivals_for_a_mix(tmp_path: Path) -> None:
    """If this failed, a mix could not be swept over rates, or be made bursty as a whole."""
    (tmp_path / "two.toml").write_text(PRESET.format(of="requests"))
    name = str(tmp_path / "two.toml")
    faster, shared = catalog.load(name, rate_rps=60.0), catalog.load(name, rate_rps=60.0, arrivals="gamma:cv=3")
    drawn = Schedule.draw(shared.workload, seed=1, requests=20_000)

    assert 60.0 == faster.rate_rps == pytest.approx(shared.rate_rps)
    assert shared.arrivals_text.startswith("gamma:")
    assert shared.gap_cdf is not None
    assert 40.0 == pytest.approx(shared.arrivals_rps)
    assert 60.0 == pytest.approx(len(drawn) / drawn.span_s, rel=0.1)


def test_recorded_arrivals_are_split_unchanged(tmp_path: Path) -> None:
    """If this failed, the bursts of a trace could not be given to a mix, or would be bent in silence."""
    stamps = np.cumsum(np.random.default_rng(0).exponential(1.0, 50))
    rows = "".join(f"{t:.3f},5,5\n" for t in stamps - stamps[0])
    (tmp_path / "trace.csv").write_text(f"Timestamp,Request tokens,Response tokens\n{rows}")
    loaded = catalog.load("two-scenario", arrivals=f"trace:{tmp_path / 'trace.csv'}")
    drawn = Schedule.draw(loaded.workload, seed=0)

    assert 50 == loaded.requests == len(drawn)
    np.testing.assert_allclose(stamps - stamps[0], drawn.table["scheduled_s"].to_numpy(), atol=1e-3)


def test_copies_of_a_class_have_the_requested_popularity() -> None:
    """If this failed, tenants would not differ in traffic as they do."""
    loaded = catalog.load("multi-tenant:tenants=4,zipf=1")
    drawn = Schedule.draw(loaded.workload, seed=0, requests=10_000).table
    counts = np.array([pc.sum(pc.equal(drawn["tag"], f"tenant-{k}")).as_py() for k in range(1, 5)])

    np.testing.assert_allclose(np.array([12, 6, 4, 3]) / 25, counts / 10_000, atol=0.02)
    assert 4 == len(loaded.provenance["classes"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[class]]\nname = "a"\n', "not a preset: .*lengths"),
        ('[[class]]\nname = "a"\nlengths = "fixed"\nshare = 0\n', "class a: share must be above 0"),
        ('[[class]]\nname = "a"\nlengths = "fixed"\nshare = "x"\n', r"Expected `float`, got `str` - at .*share"),
        ('[[class]]\nname = "a"\nlengths = "fixed"\nweight = 1\n', "No key of a preset named 'weight'"),
        ('[[class]]\nname = "a"\nlengths = "fixed"\narrivals = "closed"\n', "class a: 'closed' has a rate of its own"),
        ('[[class]]\nname = "a"\nlengths = "fixed"\n' * 2, "a name of its own"),
        ('arrivals = "closed"\n[[class]]\nname = "a"\nlengths = "fixed"\n', "a closed loop has no rate to share out"),
        ('[[class]]\nname = "a"\nlengths = "fixd"\n', "Did you mean 'fixed'"),
        ('[[class]]\nname = "a"\nlengths = "fixed"\ncopies = 0\n', "copies must be at least 1"),
        ("about = 3 = 4", "is not TOML"),
        ("arguments = 3", r"Expected `object`, got `int` - at `\$.arguments`"),
        ("", "has no lengths; write a line such as lengths = "),
        (
            '[[class]]\nname = "a"\nlengths = "fixed"\nsessions = "fixed"\ncopies = 65\n',
            "class a-65: only the first 64 classes of a mix can have sessions",
        ),
    ],
)
def test_a_preset_file_that_is_wrong_is_reported_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    """If this failed, who writes a preset would meet a traceback."""
    (tmp_path / "mine.toml").write_text(text)

    with pytest.raises(UsageError, match=words):
        catalog.load(str(tmp_path / "mine.toml"))
