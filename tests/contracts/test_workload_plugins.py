"""What every arrivals, lengths, content and trace reader promises, found through the registry."""

from __future__ import annotations

import inspect
import math
import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from harness.api import Request
from harness.registry import find, make, names
from harness.spec import text_of

if TYPE_CHECKING:
    from pathlib import Path

TRACE = "Timestamp,Request tokens,Response tokens\n" + "".join(f"{3 * i},7,9\n" for i in range(2001))
OTHER_SPECS = {
    "gamma": "gamma:rate=3,cv=1.7",
    "poisson": "poisson:0.7",
    "lognormal": "lognormal:prompt_mean=90,output_cv=0.4,max_total=4096",
    "sharegpt": "sharegpt:first-turn",
    "fixed": "fixed:7,output=3",
    "uniform": "uniform:prompt_min=3,prompt_max=5",
}
KINDS = ("arrivals", "lengths", "content", "readers")
MEMBERS = [(kind, name) for kind in KINDS for name in names(kind)]


@pytest.fixture
def spec(kind: str, name: str, tmp_path: Path) -> str:
    """The shortest spec that builds the plug-in: its name, and a file for what reads one."""
    if (kind, name) != ("arrivals", "trace"):
        return name
    (tmp_path / "trace.csv").write_text(TRACE)
    return f"trace:{tmp_path / 'trace.csv'}"


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
    for text in (spec, OTHER_SPECS.get(name, spec)):
        member = make(kind, text)

        assert member == make(kind, text_of(member, name))


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_has_a_docstring_with_units_and_source(kind: str, name: str) -> None:
    """If this failed, `bench explain` would list something nobody can judge."""
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


@pytest.mark.parametrize(("kind", "name"), [m for m in MEMBERS if m[0] in ("arrivals", "lengths")])
def test_sample_mean_agrees_with_the_stated_mean(kind: str, name: str, spec: str) -> None:
    """If this failed, the load that a report states would not be the load that was sent."""
    for text in (spec, OTHER_SPECS.get(name, spec)):
        member = make(kind, text)
        drawn = sample(kind, member, 50_000, seed=5)
        stated = 1 / means(kind, member) if kind == "arrivals" else means(kind, member)
        error = drawn.std(axis=0) / math.sqrt(len(drawn))

        assert np.all(np.abs(drawn.mean(axis=0) - stated) <= 4 * error + 1e-9 * stated)


@pytest.mark.parametrize("name", names("arrivals"))
@pytest.mark.parametrize("kind", ["arrivals"])
def test_times_start_at_zero_or_later_and_never_fall(kind: str, name: str, spec: str) -> None:
    """If this failed, a schedule would send into the past."""
    at_s = list(islice(make(kind, spec).times(np.random.default_rng(0)), 2000))

    assert at_s[0] >= 0
    assert all(a <= b for a, b in zip(at_s, at_s[1:], strict=False))
    assert {float} == {type(t) for t in at_s}


@pytest.mark.parametrize("name", names("lengths"))
def test_lengths_are_whole_and_at_least_one(name: str) -> None:
    """If this failed, a request would ask for nothing, or for half a token."""
    pairs = list(islice(make("lengths", name).pairs(np.random.default_rng(0)), 20_000))

    assert all(type(p) is int and type(o) is int and p >= 1 and o >= 1 for p, o in pairs)


@pytest.mark.parametrize("name", names("content"))
def test_content_is_exact_repeatable_and_shared(name: str) -> None:
    """If this failed, prompts would not have the length or the shared blocks that the schedule says."""
    one, two = (make("content", name, seed=3) for _ in range(2))
    first, second = (Request(i, 0.0, 700, 1, prefix_ids=(5,), prefix_block_tokens=64) for i in (1, 2))

    np.testing.assert_array_equal(one.token_ids(first, 999), two.token_ids(first, 999))
    np.testing.assert_array_equal(one.token_ids(first, 999)[:64], one.token_ids(second, 999)[:64])
    assert 700 == len(one.token_ids(first, 999))


@pytest.mark.parametrize("name", names("readers"))
def test_a_reader_says_what_it_needs(name: str) -> None:
    """If this failed, an unknown header could not be answered with what each format needs."""
    kind = find("readers", name)

    assert kind.stamp in kind.needs
    assert kind.form in ("csv", "json")
    assert "tokenizer" in kind.facts
