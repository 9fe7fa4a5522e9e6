"""What is built of replicas by their bounds: ratios, ties, and the value of a unit."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.catalog import Shape
from harness.errors import UsageError
from harness.experiments.place.bound import served_rps, units
from harness.experiments.place.settings import PlaceOptions
from harness.experiments.place.systems import Algorithm, Cluster, Deployment, Group, Objective, load_objective
from tests.place.test_execute import placement

NODE = Cluster(1, 8)
PREFILL, DECODE = Group("prefill", "a100-80g", Shape()), Group("decode", "a100-80g", Shape())


def options(algorithm: Algorithm = "high", cluster: Cluster = NODE, saves: Objective | None = None) -> PlaceOptions:
    return replace(
        placement(), algorithms=(algorithm,), cluster=cluster, objective=saves or Objective(), hardware=("a100-80g",)
    )


def test_two_prefill_replicas_feed_one_decode_replica() -> None:
    """The published example: 5.6 and 10 requests per second give min(2 x 5.6, 10) / 3 = 3.33 per GPU (K10.g)."""
    rates = {PREFILL: 5.6, DECODE: 10.0}
    best, *_ = units(options(cluster=Cluster(1, 4)), rates)

    assert ("2 x P(1,1) + 1 x D(1,1)", 3) == (best.name, best.gpus)
    assert pytest.approx(10.0) == served_rps(best, rates)


def test_the_ratio_is_that_of_the_min_rule() -> None:
    """P/D-Serve: of all whole numbers of replicas on 8 GPUs none carry more per GPU (K14.c)."""
    rates = {PREFILL: 5.6, DECODE: 10.0}
    best, *_ = units(options(), rates)
    brute = max((min(n * 5.6, m * 10.0) / (n + m), n, m) for n in range(1, 8) for m in range(1, 9 - n))

    assert brute == (pytest.approx(served_rps(best, rates) / best.gpus), *best.counts) == (pytest.approx(3.5), 5, 3)


def test_the_faster_side_does_not_help() -> None:
    """A unit would promise more than its weaker side serves."""
    assert "7 x P(1,1) + 1 x D(1,1)" == units(options(), {PREFILL: 1.0, DECODE: 9.0})[0].name


def test_of_equal_rates_the_one_with_fewer_gpus_wins() -> None:
    """More GPUs would be bought for nothing."""
    large = replace(PREFILL, shape=Shape(2, 1))
    rates = {PREFILL: 4.75, large: 9.5, DECODE: 4.75, replace(DECODE, shape=Shape(2, 1)): 9.5}

    assert ["P(1,1) D(1,1)", "P(2,1) D(2,1)"] == [unit.name for unit in units(options("low"), rates)][:2]


def test_sides_on_other_kinds_of_gpu_make_units(tmp_path: Path) -> None:
    """Cheap GPUs would stand idle that are good enough to decode."""
    (tmp_path / "prices.toml").write_text("h100 = 4\nl40s = 1\n")
    saves = load_objective("cost", str(tmp_path / "prices.toml"), ("h100", "l40s"))
    rates = {replace(PREFILL, hardware="h100"): 10.0, replace(DECODE, hardware="l40s"): 5.0}

    assert "1 x P(1,1) + 2 x D(1,1)" == units(options(cluster=Cluster(2, 2), saves=saves), rates)[0].name
    assert [] == units(options(cluster=Cluster(1, 4), saves=saves), rates)  # a node has one kind


def test_watts_may_differ_between_the_sides(tmp_path: Path) -> None:
    """Decode draws less power than prefill: a unit with more decode GPUs would be valued too low."""
    (tmp_path / "power.toml").write_text("[a100-80g]\nprefill = 400\ndecode = 200\nmixed = 300\n")
    saves = load_objective("power", str(tmp_path / "power.toml"), ("a100-80g",))

    pair = Deployment((replace(PREFILL, shape=Shape(2, 1)), DECODE))

    assert pytest.approx(1000 * 3.0 / (2 * 400 + 200)) == saves.of(pair, 3.0)


def test_money_is_per_hour(tmp_path: Path) -> None:
    """Requests per unit of money would be off by 3,600."""
    (tmp_path / "prices.toml").write_text("a100-80g = 1.8\n")
    saves = load_objective("cost", str(tmp_path / "prices.toml"), ("a100-80g",))

    assert pytest.approx(2000.0) == saves.of(Deployment((replace(PREFILL, role="mixed"),)), 1.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("h100 = 3", "has no entry for 'a100-80g'"),
        ("a100-80g = -1", "must be a number above 0, got -1"),
        ("a100-80g = 'two'", "must be a number above 0, got 'two'"),
        ("[a100-80g]\nprefill = 1", "has no 'mixed' for 'a100-80g'"),
        ("a100-80g =", "is not TOML"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_table_is_one_sentence(content: str | None, message: str, tmp_path: Path) -> None:
    """A user must learn what the file should hold."""
    file = tmp_path / "prices.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError) as error:
        load_objective("cost", str(file), ("a100-80g",))

    assert message in str(error.value)
