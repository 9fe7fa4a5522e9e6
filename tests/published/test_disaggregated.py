"""Rows of public benchmarks with prefill and decode apart become the deployments that were measured."""

from pathlib import Path

import pytest

from published import disaggregated, sources


@pytest.fixture(scope="module")
def data() -> Path:
    """The folder of public measurements."""
    found = sources.data_folder()
    if found is None:
        pytest.skip("the public measurements are not here: shared/data")
    return found


def test_every_row_is_scored_or_counted(data: Path) -> None:
    """Rows that vanish would make the errors smaller than they are."""
    found, out = disaggregated.configurations(data)

    assert 58 == len(found)
    assert 48 == sum(out.values())
    assert all("MTP" in reason for reason in out)


def test_workers_have_the_gpus_of_their_side(data: Path) -> None:
    """A decode side of one worker on 48 GPUs says tp 1 and ep 1; read so it would be a replica of one GPU."""
    found, _ = disaggregated.configurations(data)
    wide = [one for one in found if one.decode.gpus == 48]

    assert wide
    assert {(1, 48, 48)} == {(w.decode.shape.tp, w.decode.shape.dp, w.decode.shape.ep) for w in wide}


def test_a_wide_decode_side_is_near_what_was_measured(data: Path) -> None:
    """Pricing exchanges as gathers of all tokens makes steps of 32 and 48 GPUs twice as long."""
    found, _ = disaggregated.configurations(data)
    one = next(one for one in found if one.precision == "fp4" and one.clients == 1024 and one.decode.gpus == 32)

    answer = disaggregated.simulated((one, disaggregated.latency_of(one, roofline=False)))

    assert answer is not None
    assert answer[1] == pytest.approx(one.tpot_s, rel=disaggregated.LIMIT)
