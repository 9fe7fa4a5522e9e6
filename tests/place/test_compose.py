"""What is built of candidates: ratios, copies, ties, and the value of a unit."""

from pathlib import Path

import pytest

from harness.catalog import Shape
from harness.errors import UsageError
from harness.experiments.place.combine import Scored, units
from harness.experiments.place.search import rate
from harness.experiments.place.settings import ratio_of
from harness.experiments.place.systems import Algorithm, Cluster, Deployment, Group, Objective, Role, load_objective

NODE = Cluster(1, 8)


def scored(
    algorithm: Algorithm,
    role: Role,
    shape: Shape,
    *per_gpu: float,
    other: Shape | None = None,
    saves: Objective | None = None,
    hardware: str = "a100-80g",
) -> Scored:
    """A candidate with these rates per GPU, one a seed; a pair with an `other` side."""
    groups = (Group(role, hardware, shape), *([Group("decode", hardware, other)] if other is not None else []))
    system = Deployment(groups)
    found = rate(dict(enumerate(per_gpu)), 0.0625)
    return Scored(algorithm, system, found, (saves or Objective()).of(system, found.value * system.gpus), "joint")


def test_two_prefill_replicas_feed_one_decode_replica() -> None:
    """The published example: 5.6 and 10 requests per second give min(2 x 5.6, 10) / 3 = 3.33 per GPU (K10.g)."""
    found = units(
        "high",
        [scored("high", "prefill", Shape(), 5.6), scored("high", "decode", Shape(), 10.0)],
        Objective(),
        Cluster(1, 4),
    )

    assert "2 x P(1,1) + 1 x D(1,1)" == found[0].name
    assert (3, pytest.approx(10 / 3)) == (found[0].gpus, found[0].per_gpu.value)


def test_the_ratio_is_that_of_the_min_rule() -> None:
    """P/D-Serve: of all whole numbers of replicas on 8 GPUs none carry more per GPU; a given ratio is the only one
    (K14.c)."""
    rates = (5.6, 10.0)
    sides = [scored("high", role, Shape(), x) for role, x in zip(("prefill", "decode"), rates, strict=True)]
    best = units("high", sides, Objective(), NODE)[0]
    brute = max((min(n * rates[0], m * rates[1]) / (n + m), n, m) for n in range(1, 8) for m in range(1, 9 - n))

    assert brute == (pytest.approx(best.per_gpu.value), *best.deployment.counts) == (pytest.approx(3.5), 5, 3)
    assert ["1 x P(1,1) + 2 x D(1,1)"] == [one.name for one in units("high", sides, Objective(), NODE, (1, 2))]


@pytest.mark.parametrize(("text", "ratio"), [(None, None), ("auto", None), ("2:1", (2, 1)), ("6:4", (3, 2))])
def test_a_ratio_is_read_in_lowest_terms(text: str | None, ratio: tuple[int, int] | None) -> None:
    """6:4 would find nothing: the unit of 3:2 stands for all its multiples."""
    assert ratio == ratio_of(text)


@pytest.mark.parametrize("text", ["2", "0:1", "1:x", "1:2:3"])
def test_a_ratio_that_is_none_is_refused(text: str) -> None:
    """It would be searched as if none had been given."""
    with pytest.raises(UsageError, match="must be auto or prefill to decode replicas such as 2:1"):
        ratio_of(text)


def test_the_faster_side_does_not_help() -> None:
    """A unit would promise more than its weaker side sustains."""
    found = units(
        "high", [scored("high", "prefill", Shape(), 1.0), scored("high", "decode", Shape(), 9.0)], Objective(), NODE
    )

    assert all(unit.total_rps <= 7 * 1.0 + 1e-9 for unit in found)
    assert "7 x P(1,1) + 1 x D(1,1)" == found[0].name


def test_of_equal_rates_the_one_with_fewer_gpus_wins() -> None:
    """More GPUs would be bought for nothing; the other one is reported as a tie."""
    small = scored("low", "prefill", Shape(2, 1), 4.75, other=Shape())
    large = scored("low", "prefill", Shape(2, 1), 4.75, other=Shape(2, 1))

    best, _ = units("low", [large, small], Objective(), NODE)

    assert ("P(2,1) D(1,1)", 3) == (best.name, best.gpus)


def test_sides_on_other_kinds_of_gpu_make_units(tmp_path: Path) -> None:
    """Cheap GPUs would stand idle that are good enough to decode."""
    (tmp_path / "prices.toml").write_text("h100 = 4\nl40s = 1\n")
    saves = load_objective("cost", str(tmp_path / "prices.toml"), ("h100", "l40s"))
    sides = [
        scored("high", "prefill", Shape(), 10.0, hardware="h100", saves=saves),
        scored("high", "decode", Shape(), 5.0, hardware="l40s", saves=saves),
    ]

    assert "1 x P(1,1) + 2 x D(1,1)" == units("high", sides, saves, Cluster(2, 2))[0].name
    assert [] == units("high", sides, saves, Cluster(1, 4))  # a node has one kind


def test_watts_may_differ_between_the_sides(tmp_path: Path) -> None:
    """Decode draws less power than prefill: a unit with more decode GPUs would be valued too low."""
    (tmp_path / "power.toml").write_text("[a100-80g]\nprefill = 400\ndecode = 200\nmixed = 300\n")
    saves = load_objective("power", str(tmp_path / "power.toml"), ("a100-80g",))

    found = scored("low", "prefill", Shape(2, 1), 1.0, other=Shape(), saves=saves)

    assert pytest.approx(1000 * 3.0 / (2 * 400 + 200)) == found.value


def test_money_is_per_hour(tmp_path: Path) -> None:
    """Requests per unit of money would be off by 3,600."""
    (tmp_path / "prices.toml").write_text("a100-80g = 1.8\n")
    saves = load_objective("cost", str(tmp_path / "prices.toml"), ("a100-80g",))

    assert pytest.approx(2000.0) == scored("vllm++", "mixed", Shape(), 1.0, saves=saves).value


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
