"""Traces are filtered, scaled and jittered by the laws that are stated for it, and nothing else happens to them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.stats import arrivals
from workloads import traces, transforms
from workloads.transforms import Compress, Superpose, Thin

SEEDS = range(20)


def trace(at_s: np.ndarray, **columns: object) -> traces.Trace:
    """A trace in memory, lengths 1, 2, 3, ... unless given."""
    rows = len(at_s)
    kinds = {"session": pa.int64(), "parent": pa.int64(), "turn": pa.int32(), "prefix_ids": pa.list_(pa.int64())}
    values = {"prompt_tokens": np.arange(1, rows + 1), "output_tokens": np.arange(1, rows + 1)[::-1], **columns}
    table = pa.table({"at_s": np.asarray(at_s, float)} | {n: pa.array(v, kinds.get(n)) for n, v in values.items()})
    return traces.Trace(table, 512, {"file": "made", "rows": rows, "requests": rows, "dropped": {}, "start_s": None})


def rng(seed: int = 0) -> np.random.Generator:
    """A generator of its own."""
    return np.random.default_rng(seed)


def median(values: list[float]) -> float:
    """med20: the median over seeds."""
    return float(np.median(values))


@pytest.fixture(scope="module")
def azure() -> traces.Trace:
    """The Azure 2023 conversation trace."""
    file = Path(__file__).resolve().parents[3] / "shared/data/traces/azure2023/AzureLLMInferenceTrace_conv.csv"
    if not file.exists():
        pytest.skip("real traces (shared/data beside the project) are not on this machine")
    return traces.read(str(file))


class TestLaws:
    """Acceptance test B6, and what scaling does to the dispersion."""

    def test_thinning_keeps_the_law(self, azure: traces.Trace) -> None:
        """Half of the Azure trace would not be half as bursty: IDC_p(T) - 1 = p (IDC(T) - 1), within 10 % (B6)."""
        for share, width_s in ((0.5, 10.0), (0.5, 60.0), (0.1, 60.0)):
            real = arrivals.dispersion(azure.at_s, width_s)
            found = median([arrivals.dispersion(Thin(share).apply(azure, rng(s)).at_s, width_s) for s in SEEDS])

            assert 1 + share * (real - 1) == pytest.approx(found, rel=0.1)

    def test_compression_moves_the_curve_along_the_width(self, azure: traces.Trace) -> None:
        """Twice as fast would not mean that a minute is what two minutes were."""
        fast = Compress(2).apply(azure, rng())

        assert 2 * azure.mean_rate_rps == pytest.approx(fast.mean_rate_rps)
        assert arrivals.gap_cv(azure.at_s) == pytest.approx(arrivals.gap_cv(fast.at_s))
        for width_s in (1.0, 10.0, 30.0):
            assert arrivals.dispersion(azure.at_s, 2 * width_s) == arrivals.dispersion(fast.at_s, width_s)

    def test_superposition_keeps_the_dispersion(self, azure: traces.Trace) -> None:
        """Three users in place of one would be burstier, or smoother, than their independence says."""
        copies = [Superpose(3).apply(azure, rng(seed)) for seed in SEEDS]

        assert {3 * len(azure)} == {len(copy) for copy in copies}
        assert 3 * azure.mean_rate_rps == pytest.approx(median([copy.mean_rate_rps for copy in copies]), rel=0.01)
        for width_s, within in ((1.0, 0.1), (10.0, 0.15)):
            real = arrivals.dispersion(azure.at_s, width_s)
            found = median([arrivals.dispersion(copy.at_s, width_s) for copy in copies])
            assert real == pytest.approx(found, rel=within)

    def test_thinning_a_superposition_gives_the_rate_back(self, azure: traces.Trace) -> None:
        """Steps would not be done in their order."""
        same = transforms.scaled(azure, "superpose:2+thin:0.5", rng())

        assert azure.mean_rate_rps == pytest.approx(same.mean_rate_rps, rel=0.03)


class TestScaling:
    """What happens to the rows."""

    def test_compression_touches_only_the_stamps(self) -> None:
        """Lengths would change with the speed of time."""
        before = trace(np.array([0.0, 1.0, 4.0]))
        after = Compress(4).apply(before, rng())

        assert [0.0, 0.25, 1.0] == after.at_s.tolist()
        assert before.table.drop_columns("at_s") == after.table.drop_columns("at_s")

    def test_thinning_keeps_rows_as_they_are(self) -> None:
        """A kept request would get another's length."""
        before = trace(np.arange(1000.0))
        after = Thin(0.3).apply(before, rng(1))
        rows = after.table["prompt_tokens"].to_numpy() - 1

        assert before.table.take(pa.array(rows)) == after.table
        assert 300 == pytest.approx(len(after), abs=60)
        assert len(before) == len(after) + sum(after.facts["left_out"].values())

    def test_thinning_keeps_conversations_whole(self) -> None:
        """A conversation would lose turns from its middle, and follow-ups their question."""
        session = np.repeat(np.arange(200), 5)
        before = trace(np.arange(1000.0), session=session)
        after = Thin(0.5).apply(before, rng(2))
        _, turns = np.unique(after.table["session"].to_numpy(), return_counts=True)

        assert {5} == set(turns.tolist())
        assert 100 == pytest.approx(len(turns), abs=25)

    def test_requests_without_a_session_are_drawn_one_by_one(self) -> None:
        """All requests outside conversations would stay or go together."""
        session = [None if i % 2 else 7 for i in range(1000)]
        after = Thin(0.5).apply(trace(np.arange(1000.0), session=session), rng(3))
        alone = after.table["session"].null_count

        assert 250 == pytest.approx(alone, abs=50)
        assert len(after) - alone in (0, 500)

    def test_superposed_copies_are_strangers(self) -> None:
        """Copies would share conversations and prefixes, and a cache would look better than it is."""
        prefixes = [[0, 1], [0, 2], [0, 1, 3]]
        before = trace(np.array([0.0, 1.0, 2.0]), session=[4, None, 4], parent=[None, None, 0], prefix_ids=prefixes)
        after = Superpose(3).apply(before, rng(4)).table.to_pylist()
        by_copy: dict[int, list[dict[str, object]]] = {}
        for row in after:
            by_copy.setdefault(row["prefix_ids"][0], []).append(row)

        assert 3 == len(by_copy)
        for first, rows in by_copy.items():
            shown = sorted([i - first for i in row["prefix_ids"]] for row in rows)
            assert sorted(prefixes) == shown
        sessions = [{row["session"] for row in rows} - {None} for rows in by_copy.values()]
        assert sum(map(len, sessions)) == len(set().union(*sessions))

    def test_copies_keep_the_hour_of_the_day(self) -> None:
        """Three weeks at once would have no quiet hours any more."""
        day_s = 86_400.0
        at_s = np.concatenate([day * day_s + np.linspace(0.4, 0.6, 100) * day_s for day in range(7)])
        free = Superpose(3).apply(trace(at_s), rng(7)).at_s
        kept = Superpose(3, shift_s=day_s).apply(trace(at_s), rng(7)).at_s

        assert ((kept % day_s >= 0.39 * day_s) & (kept % day_s <= 0.61 * day_s)).all()
        assert [300] * 7 == np.bincount((kept // day_s).astype(int)).tolist()
        assert not ((free % day_s >= 0.39 * day_s) & (free % day_s <= 0.61 * day_s)).all()

    def test_copies_with_a_shift_are_all_different(self) -> None:
        """Two copies at the same times would be twice the load in step, not two independent ones."""
        at_s = np.array([0.0, 10.0, 20.0, 30.0])
        after = Superpose(4, shift_s=10.0).apply(trace(at_s), rng(8))
        rows = sorted(after.table.select(["at_s", "prompt_tokens"]).to_pylist(), key=str)

        assert len(rows) == len({(row["at_s"], row["prompt_tokens"]) for row in rows})

    def test_hashes_leave_room_for_copies(self) -> None:
        """Prefix ids near 2**63 would overflow, or meet those of a copy."""
        large = (1 << 63) - 1
        before = trace(np.array([0.0, 1.0]), prefix_ids=[[large, large - 1], [large]])
        rows = Superpose(2).apply(before, rng(5)).table["prefix_ids"].to_pylist()
        ids = [i for row in rows for i in row]

        assert 4 == len(set(ids))
        assert min(ids) >= 0

    @given(st.integers(0, 1000), st.integers(2, 4))
    def test_parents_stay_before_their_children(self, seed: int, copies: int) -> None:
        """A turn would follow itself, a stranger, or its own answer."""
        draw = rng(seed)
        session = draw.integers(0, 6, 40)
        parent = [next((j for j in range(i - 1, -1, -1) if session[j] == s), None) for i, s in enumerate(session)]
        before = trace(np.sort(draw.uniform(0, 50, 40)), session=session, parent=parent)
        step = transforms.scaled(before, f"superpose:{copies}+thin:0.7", draw)
        rows = step.table.to_pylist()

        assert (np.diff(step.at_s) >= 0).all()
        for i, row in enumerate(rows):
            if row["parent"] is not None:
                assert row["parent"] < i
                assert rows[row["parent"]]["session"] == row["session"]


class TestFilter:
    """Rows in = rows out + named drops."""

    def test_conditions_by_hand(self) -> None:
        """Bounds would be taken as open where they are closed, or one condition for all."""
        before = trace(np.arange(5.0), prompt_tokens=[1, 2, 3, 4, 5], output_tokens=[9, 9, 0, 9, 9])
        after = transforms.filtered(before, "prompt_tokens>=2,prompt<5,output_tokens!=0")

        assert [2, 4] == after.table["prompt_tokens"].to_pylist()
        assert [0.0, 2.0] == after.at_s.tolist()
        assert {"not prompt_tokens>=2": 1, "not prompt_tokens<5": 1, "not output_tokens!=0": 1} == after.facts[
            "left_out"
        ]

    def test_tags_and_unknown_values(self) -> None:
        """Rows without a tag would pass for every tag."""
        before = trace(np.arange(4.0), tag=["api", None, "conversation", "api"])

        assert 2 == len(transforms.filtered(before, "tag=api"))
        assert 1 == len(transforms.filtered(before, "tag!=api"))

    def test_a_slice_keeps_its_start(self) -> None:
        """Time 0 would move from the start of the slice to its first long prompt."""
        before = transforms.with_facts(trace(np.array([5.0, 6.0])), start_s=100.0)

        assert [6.0] == transforms.filtered(before, "prompt_tokens>=2").at_s.tolist()

    def test_turns_follow_the_nearest_one_left(self) -> None:
        """The third turn would follow a second one that is not sent, or none."""
        before = trace(np.arange(4.0), prompt_tokens=[1, 50, 2, 60], session=[1, 1, 1, 1], parent=[None, 0, 1, 2])

        assert [None, 0] == transforms.filtered(before, "prompt_tokens<10").table["parent"].to_pylist()
        assert [None, 0] == transforms.filtered(before, "prompt_tokens>10").table["parent"].to_pylist()
        assert [None, 0] == transforms.filtered(before, "prompt_tokens!=50,prompt!=2").table["parent"].to_pylist()


class TestJitter:
    """Stamps on a grid are spread within it, and only there."""

    def test_within_the_grain_and_in_order(self) -> None:
        """Requests would overtake one another, leave their second, or come before it."""
        before = trace(np.repeat(np.arange(50.0), 4))
        after = transforms.jittered(before, "grain", rng(1))
        moved = after.at_s - before.at_s

        assert (np.diff(after.at_s) >= 0).all()
        assert (moved >= 0).all()
        assert (moved < 1).all()
        assert 0.5 == pytest.approx(moved.mean(), abs=0.05)
        assert before.table.drop_columns("at_s") == after.table.drop_columns("at_s")
        assert "[0 s, 1 s)" in after.facts["jitter"]

    def test_ticks_become_poisson_within(self) -> None:
        """A batch of ten on each tick would still leave at one instant."""
        before = trace(np.repeat(np.arange(2000) * 3.0, rng().poisson(10, 2000)))
        after = transforms.jittered(before, "grain", rng(2))

        assert 3.0 == transforms.grain_s(before.at_s)
        assert 1.0 == pytest.approx(arrivals.gap_cv(after.at_s), abs=0.05)
        assert 1.0 == pytest.approx(arrivals.dispersion(after.at_s, 0.5), abs=0.1)

    def test_a_time_of_ones_own(self) -> None:
        """The requested width would not be the one drawn."""
        after = transforms.jittered(trace(np.zeros(1000)), "250ms", rng(3))

        assert 0.25 == pytest.approx(after.at_s.max(), abs=0.01)

    def test_grains(self) -> None:
        """A report would say that exact stamps are rounded, or the other way round."""
        exact = np.cumsum(rng().exponential(1, 500))

        assert transforms.grain_s(exact) is None
        assert 1.0 == transforms.grain_s(np.floor(exact))
        assert 1.0 == transforms.grain_s(np.floor(exact * 100))
        assert 0.001 == transforms.grain_s(np.round(exact, 3))
        assert transforms.grain_s(np.zeros(5)) is None
