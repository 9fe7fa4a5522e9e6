"""Traces into traces: another form, a slice, another load; what was done goes with the rows."""

from collections.abc import Mapping
from typing import Any

from harness.errors import UsageError
from workloads import replay, traces
from workloads.trace_tools.write import write
from workloads.traces import Trace


def convert(
    source: str,
    target: str,
    *,
    reader: str | None = None,
    columns: str | None = None,
    sort: bool = False,
    force: bool = False,
) -> tuple[int, Mapping[str, object]]:
    """Rows written and the facts of the trace; in bounded memory, whatever its length (but `sort` needs all of it)."""
    _different(source, target)
    blocks = traces.blocks(source, reader, columns=columns, sort=sort)
    tokens = blocks.block_tokens
    rows = write(target, blocks, lambda: _about(blocks.facts), block_tokens=tokens, force=force)
    return rows, blocks.facts


def cut(source: str, target: str, *, force: bool = False, **options: Any) -> Trace:
    """Write a slice; the options are those of `replay.read`."""
    _different(source, target)
    return _written(replay.read(source, **options), target, force)


def scale(source: str, target: str, spec: str, *, seed: int = 0, force: bool = False, **options: Any) -> Trace:
    """Write the trace under another load, see `transforms.scaling`; the options are those of `replay.read`."""
    _different(source, target)
    return _written(replay.changed(replay.read(source, **options), scale=spec, seed=seed), target, force)


def _written(trace: Trace, target: str, force: bool) -> Trace:
    write(target, [trace.table], lambda: _about(trace.facts), block_tokens=trace.block_tokens, force=force)
    return trace


def _about(facts: Mapping[str, object]) -> dict[str, object]:
    return {"source": dict(facts)}


def _different(source: str, target: str) -> None:
    from pathlib import Path

    if Path(source).resolve() == Path(target).resolve():
        raise UsageError(f"'{target}' is the trace that is read; give another --output.")
