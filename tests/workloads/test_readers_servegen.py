"""The client pools of ServeGen: read whole, or refused in a sentence that names the file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads._pool import read_clients

TRACE = "0,0,0,,0,0\r\n600,0.5,1.2,Gamma,0.7,2.8\r\n1200,0.25,2.0,Weibull,0.5,2\r\n"
DATASET = {"0": {"input_tokens": "{5: 0.25, 9: 0.75}", "output_tokens": "{3: 1.0}"}, "21600": {"input_tokens": "{}"}}


def pool(folder: Path, *, trace: str = TRACE, dataset: Any = DATASET, second: str | None = None) -> str:
    (folder / "chunk-0-trace.csv").write_text(trace, newline="")
    (folder / "chunk-0-dataset.json").write_text(dataset if isinstance(dataset, str) else json.dumps(dataset))
    if second is not None:
        (folder / "chunk-11-trace.csv").write_text(second, newline="")
    return str(folder)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "clients", "span_s", "rate_rps", "windows"),
    [("reason/deepseek-r1", 73, 86_400, 16.0, 4), ("language/m-small", 43, 1_209_600, 1174, 0)],
)
def test_published_pools_have_their_known_clients(
    shared_data: Path, name: str, clients: int, span_s: float, rate_rps: float, windows: int
) -> None:
    """If this failed, traffic composed of clients would lack some of them, or run at another rate."""
    found = read_clients(str(shared_data / "traces/servegen" / name))

    assert clients == len(found.clients)
    assert (span_s, 600) == (found.span_s, found.window_s)
    assert rate_rps == pytest.approx(found.mean_rate_rps, rel=0.002)
    assert {windows} == {len(c.lengths) for c in found.clients}
    assert 64 == len(found.sha256)


def test_a_pool_is_read_with_its_laws(tmp_path: Path) -> None:
    """If this failed, gaps or lengths of a client would follow another law than the published one."""
    [client] = read_clients(pool(tmp_path)).clients
    law = client.lengths[0].fields["input_tokens"]

    assert (None, "Gamma", "Weibull") == client.family
    assert [0, 0.5, 0.25] == client.rate_rps.tolist()
    assert [0, 0.7, 0.5] == client.shape.tolist()
    assert ([5, 9], [0.25, 0.75]) == (law.values.tolist(), law.probabilities.tolist())
    assert {} == client.lengths[1].fields
    assert [0.0, 21600.0] == [w.start_s for w in client.lengths]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"trace": TRACE + "1800,1,1,Gamma,1\n"}, "trace.csv', line 4: 6 columns expected"),
        (
            {"trace": TRACE + "1800,1,1,Normal,1,1\n"},
            "line 4, column 'family': Gamma or Weibull or nothing .* got 'Normal'",
        ),
        ({"trace": TRACE + "1800,1,nan,Gamma,1,1\n"}, "line 4, column 'CV': a finite number"),
        ({"trace": TRACE + "1800,-1,1,Gamma,1,1\n"}, "line 4, column 'rate': a finite number"),
        ({"trace": TRACE + "1800,1,1,Gamma,0,1\n"}, "line 4: a window with a Gamma law needs"),
        ({"trace": TRACE + "1900,1,1,Gamma,1,1\n"}, "line 4, column 'window start': windows must follow"),
        ({"trace": "0,1,1,Gamma,1,1\n"}, "at least 2 windows"),
        ({"trace": "0,0,0,,0,0\n600,0,0,,0,0\n"}, "every client has rate 0"),
        ({"dataset": "{"}, "dataset.json' cannot be read: it is not JSON"),
        ({"dataset": []}, "an object of windows"),
        ({"dataset": {"0": 5}}, "window '0': an object of fields"),
        ({"dataset": {"x": {}}}, "'window start': a finite number .* got 'x'"),
        ({"dataset": {"0": {"input_tokens": "{5: 0.5}"}}}, "field 'input_tokens': probabilities .* sum to 0.5"),
        ({"dataset": {"0": {"input_tokens": "{-5: 1.0}"}}}, "values must not be negative"),
        ({"dataset": {"0": {"input_tokens": "{a: 1.0}"}}}, "a dict of value and probability"),
        ({"dataset": {"0": {"input_tokens": "{5: 1.0, 6}"}}}, "a dict of value and probability"),
        ({"second": "0,1,1,Gamma,1,1\n300,1,1,Gamma,1,1\n"}, "chunk-11-trace.csv': its 2 windows are not those"),
    ],
)
def test_a_damaged_pool_is_one_sentence(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    """If this failed, a damaged client would end in a traceback, or send nonsense."""
    with pytest.raises(UsageError, match=words) as caught:
        read_clients(pool(tmp_path, **given))
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_pool_is_one_sentence(tmp_path: Path) -> None:
    """If this failed, a typing mistake in a folder would end in a traceback."""
    (tmp_path / "m-small").mkdir()
    with pytest.raises(UsageError, match=r"holds no chunk-N-trace.csv; it holds m-small: name one pool"):
        read_clients(str(tmp_path))
    with pytest.raises(UsageError, match="does not exist"):
        read_clients(str(tmp_path / "x"))
    with pytest.raises(UsageError, match="ServeGen folder"):
        read_clients("\0")


@given(
    st.integers(0, 200),
    st.sampled_from(["", "\0", "nan", "-", "9" * 400, ",", "\n", '"', "{", "\u00e9", "1e999"]),
    st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
def test_no_damage_to_a_pool_gives_a_traceback(tmp_path: Path, at: int, put: str, to_trace: bool) -> None:
    """If this failed, some pool would crash a run instead of being named."""
    text = TRACE if to_trace else json.dumps(DATASET)
    damaged = text[: at % len(text)] + put + text[at % len(text) + 1 :]
    try:
        found = read_clients(pool(tmp_path, **({"trace": damaged} if to_trace else {"dataset": damaged})))
    except UsageError as error:
        assert str(tmp_path) in str(error)  # noqa: PT017  # both outcomes are right
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert np.isfinite(found.mean_rate_rps)
