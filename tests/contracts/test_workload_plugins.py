"""What every arrivals, lengths, content and trace reader promises, found through the registry."""

import inspect
import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.api import RateCurve, Request
from harness.registry import find, make, names
from harness.spec import text_of
from workloads.fit.model import Model, Service
from workloads.fit.process import Cox
from workloads.lengths._empirical import measure

TRACE = "Timestamp,Request tokens,Response tokens\n" + "".join(f"{3 * i},7,9\n" for i in range(2001))
OTHER_SPECS = {
    "gamma": "gamma:rate=3,cv=1.7",
    "poisson": "poisson:0.7",
    "mmpp": "mmpp:rate=3,levels=1/4/0,dwells=500ms/1s/2s,cv=0.5",
    "ramp": "ramp:from=5,to=2,over=1min,rate=3",
    "steps": "steps:levels=1/0/3,every=5s,rate=2",
    "spike": "spike:rate=2,factor=0,at=0,for=1,every=10s,cv=2",
    "diurnal": "diurnal:rate=5,hours=1/0/3,weekend=0.5,start_day=5,start_h=3,period=10min",
    "lognormal": "lognormal:prompt_mean=90,output_cv=0.4,max_total=4096",
    "sharegpt": "sharegpt:first-turn",
    "fixed": "fixed:7,output=3",
    "uniform": "uniform:prompt_min=3,prompt_max=5",
}
YEARS = {("arrivals", "burstgpt")}  # its campaigns show their mean over years: test_published_burstgpt.py
KINDS = ("arrivals", "lengths", "content", "readers")
MEMBERS = [(kind, name) for kind in KINDS for name in names(kind)]


@pytest.fixture
def spec(kind: str, name: str, tmp_path: Path) -> str:
    """The shortest spec that builds the plug-in: its name, and a file for what reads one."""
    if name == "fitted":
        arrivals, lengths = Cox(2.0, 0.7), measure(np.arange(1, 401), np.arange(400, 0, -1))
        Model((Service(None, arrivals, lengths),), {"file": "made"}, {}).save(tmp_path / "model.json")
        return f"fitted:{tmp_path / 'model.json'}"
    if (kind, name) == ("content", "text"):
        return f"text:{tokenizer(tmp_path)}"
    if (kind, name) != ("arrivals", "trace"):
        return name
    (tmp_path / "trace.csv").write_text(TRACE)
    return f"trace:{tmp_path / 'trace.csv'}"


def tokenizer(folder: Path) -> Path:
    """A tokenizer.json with one token for each of 40 words."""
    library = pytest.importorskip("tokenizers")
    words = {"a" * (1 + i // 26) + chr(97 + i % 26): i for i in range(40)}
    made = library.Tokenizer(library.models.WordLevel(words, unk_token="aa"))
    made.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def means(kind: str, member: Any) -> np.ndarray:
    return np.array([member.mean_rate_rps] if kind == "arrivals" else member.mean_tokens)


def sample(kind: str, member: Any, count: int, seed: int) -> np.ndarray:
    """(N, 1) gaps or (N, 2) lengths."""
    rng = np.random.default_rng(seed)
    if kind == "arrivals":
        return np.diff(np.array(list(islice(member.times(rng), count))))[:, None]
    return np.array(list(islice(member.pairs(rng), count)))


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_builds_and_its_spec_round_trips(kind: str, name: str, spec: str) -> None:
    """If this failed, a stored run could not be repeated from the spec that it stores."""
    drawn = kind in ("arrivals", "lengths")  # a reader may have the name of the lengths that it reads
    for text in (spec, OTHER_SPECS.get(name, spec) if drawn else spec):
        member = make(kind, text)

        assert member == make(kind, text_of(member, name))


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_has_a_docstring_with_units_and_source(kind: str, name: str) -> None:
    """If this failed, `bench explain` would list something without an explanation."""
    found = find(kind, name)
    doc = f"{inspect.getdoc(inspect.getmodule(found))} {inspect.getdoc(found)}"

    assert re.search(r"\bSource\b", doc)
    assert re.search(r"second|token", doc)


@pytest.mark.parametrize(("kind", "name"), [m for m in MEMBERS if m[0] in ("arrivals", "lengths")])
def test_equal_seed_gives_an_equal_stream_whatever_is_taken(kind: str, name: str, spec: str) -> None:
    """If this failed, a seed would not name one schedule."""
    member = make(kind, spec)
    one, two, short = (sample(kind, member, n, seed=4) for n in (1500, 1500, 20))

    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one[: len(short)], short)


@pytest.mark.parametrize(("kind", "name"), [m for m in MEMBERS if m[0] in ("arrivals", "lengths") and m not in YEARS])
def test_sample_mean_agrees_with_the_stated_mean(kind: str, name: str, spec: str) -> None:
    """If this failed, the load that a report states would not be the load that was sent."""
    for text in (spec, OTHER_SPECS.get(name, spec)):
        member = make(kind, text)
        clock = member.operational_time if isinstance(member, RateCurve) else None
        drawn = sample(kind, member, 50_000, seed=5) if clock is None else operational_gaps(member, 50_000)
        stated = means(kind, member) if kind == "lengths" else 1 / means(kind, member) if clock is None else 1.0

        assert np.all(np.abs(drawn.mean(axis=0) - stated) <= 4 * error_of_mean(drawn) + 1e-9 * stated)
        if clock is not None:  # one draw may be less than a day of a daily curve, so its mean follows from the curve
            assert member.mean_rate_rps == pytest.approx(clock(np.array([1e10]))[0] / 1e10, rel=1e-4)


def operational_gaps(member: Any, count: int) -> np.ndarray:
    """(N, 1) gaps on the clock on which the rate is 1."""
    at_s = np.array(list(islice(member.times(np.random.default_rng(5)), count)))
    return np.diff(member.operational_time(at_s))[:, None]


def error_of_mean(drawn: np.ndarray) -> np.ndarray:
    """Standard error from the means of 25 stretches, because neighbours may be alike (a rate that jumps)."""
    stretches = drawn[: len(drawn) // 25 * 25].reshape(25, -1, drawn.shape[1]).mean(axis=1)
    return np.asarray(stretches.std(axis=0, ddof=1) / 5)


@pytest.mark.parametrize("name", names("arrivals"))
@pytest.mark.parametrize("kind", ["arrivals"])
def test_times_start_at_zero_or_later_and_never_fall(kind: str, name: str, spec: str) -> None:
    """If this failed, a schedule would send into the past."""
    at_s = list(islice(make(kind, spec).times(np.random.default_rng(0)), 2000))

    assert at_s[0] >= 0
    assert all(a <= b for a, b in zip(at_s, at_s[1:], strict=False))
    assert {float} == {type(t) for t in at_s}


@pytest.mark.parametrize("name", names("lengths"))
@pytest.mark.parametrize("kind", ["lengths"])
def test_lengths_are_whole_and_at_least_one(name: str, kind: str, spec: str) -> None:
    """If this failed, a request would ask for nothing, or for half a token."""
    pairs = list(islice(make("lengths", spec).pairs(np.random.default_rng(0)), 20_000))

    assert all(type(p) is int and type(o) is int and p >= 1 and o >= 1 for p, o in pairs)


@pytest.mark.parametrize("name", names("content"))
@pytest.mark.parametrize("kind", ["content"])
def test_content_is_exact_repeatable_and_shared(kind: str, name: str, spec: str) -> None:
    """If this failed, prompts would not have the length or the shared blocks that the schedule says."""
    one, two = (make(kind, spec, seed=3) for _ in range(2))
    first, second = (Request(i, 0.0, 700, 1, prefix_ids=(5,), prefix_block_tokens=64) for i in (1, 2))

    np.testing.assert_array_equal(one.token_ids(first, 999), two.token_ids(first, 999))
    np.testing.assert_array_equal(one.token_ids(first, 999)[:64], one.token_ids(second, 999)[:64])
    assert 700 == len(one.token_ids(first, 999))


@pytest.mark.parametrize("name", [name for name in names("content") if name != "recorded"])  # sent as it is
@pytest.mark.parametrize("kind", ["content"])
def test_busted_content_begins_differently_in_every_prompt(kind: str, name: str, spec: str) -> None:
    """If this failed, 'bust' would leave something for a prefix cache to find."""
    plain, busted = (make(kind, f"{spec}{text}", seed=3) for text in ("", f"{',' if ':' in spec else ':'}bust=true"))
    requests = [Request(i, 0.0, 700, 1, prefix_ids=(5, 6), prefix_block_tokens=64) for i in range(200)]
    first = [tuple(busted.token_ids(request, 999)[:16].tolist()) for request in requests]

    assert 200 == len(set(first))
    assert 700 == len(busted.token_ids(requests[0], 999))
    np.testing.assert_array_equal(plain.token_ids(requests[0], 999)[32:], busted.token_ids(requests[0], 999)[32:])
    assert "bust" in busted.facts
    assert "bust" not in plain.facts


@pytest.mark.parametrize("name", names("readers"))
def test_a_reader_says_what_it_needs(name: str) -> None:
    """If this failed, an unknown header could not be answered with what each format needs."""
    kind = find("readers", name)

    assert kind.stamp in kind.needs
    assert kind.form in ("csv", "json", "parquet")
    assert "tokenizer" in kind.facts
