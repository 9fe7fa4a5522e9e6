"""Simulated numbers beside measured ones: targets, errors by metric, and the pairs themselves."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from reports import _validated as said
from reports._format import in_markdown
from reports.answers import _curve
from reports.answers._curve import PLAIN, Look

MOST = 60
"""Pairs that are printed."""

_Table = Callable[..., str]


def text(info: Mapping[str, Any], look: Look = PLAIN) -> str:
    """Each comparison: what was compared, targets, errors, pairs; its verdict last."""
    return "\n".join(
        part for one in info["validations"] for part in _parts(one, partial(_curve.text, look=look), _curve.wrapped, "")
    )


def outcome(info: Mapping[str, Any]) -> str:
    """The verdict of each comparison, a line each."""
    return "\n".join(_curve.wrapped(f"{one['name']}: {said.verdict(one)}") for one in info["validations"])


def markdown(info: Mapping[str, Any]) -> str:
    """The same as markdown."""
    return "\n".join(
        part
        for one in info["validations"]
        for part in _parts(one, _curve.markdown, partial(in_markdown, limit=None), "## ")
    )


def _parts(one: Mapping[str, Any], table: _Table, told: Callable[[str], str], mark: str) -> Iterator[str]:
    yield f"{mark}{told(one['name'] + ': ' + one['title'])}\n"
    yield from (f"{told(sentence)}\n" for sentence in one["setting"])
    pairs, more = said.shown(one, MOST)
    if pairs:
        yield table(said.PAIRS, said.pair_rows(pairs), left=2)
    if more:
        yield f"{told(more[0].upper() + more[1:] + '.')}\n"
    if one["errors"]:
        yield table(said.ERRORS, said.error_rows(one), left=2)
    if one["targets"]:
        rows = said.target_rows(one)
        yield table(said.TARGETS[:5], [row[:5] for row in rows], left=2)
        yield from (f"{told('Published: ' + row[5] + '.')}\n" for row in rows if row[5] != "-")
    yield f"{told(said.verdict(one))}\n"
