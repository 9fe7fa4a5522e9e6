"""Tokens per second of the built-in transformer beside what BLAS alone needs for the same products.

    python tests/perf/engine_throughput.py [--threads 1] [--spec llama:layers=4]

Each row is the best of many steps. `gemm` is the time of the step's weight products alone, as plain matmul;
`+attn` adds the two products of attention on contiguous keys and values; the ratio is (gemm + attn) / step.
Above 1 means faster than plain matmul (narrow strips avoid BLAS's repacking). The second table says where a step
goes; its total is a little longer, because taking the times takes time.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
from _options import parsed  # beside this file
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from backends.executors import _config, _layers, llama
from backends.executors.llama import Llama
from harness.api import Piece
from harness.registry import make

BLOCK = 16
CASES = {
    "decode 1": [(1, 512)],
    "decode 8": [(1, 512)] * 8,
    "decode 32": [(1, 512)] * 32,
    "decode 12, 850 +-500": [(1, 350 + 91 * i) for i in range(12)],
    "prefill 512": [(512, 0)],
    "prefill 760": [(760, 0)],
    "512 after 4096": [(512, 4096)],
    "mixed 8 + 256": [(1, 512)] * 8 + [(256, 512)],
}


def pieces_of(model: Llama, case: list[tuple[int, int]]) -> list[Piece]:
    """One step of (new tokens, context) pairs, in pages in random order."""
    rng = np.random.default_rng(0)
    pages = iter(rng.permutation(4096).tolist())
    made = []
    for i, (new, context) in enumerate(case):
        blocks = [next(pages) for _ in range(-(-(new + context) // BLOCK))]
        made.append(Piece(i, rng.integers(0, model.vocab_size, new).tolist(), context, blocks, True))
    return made


def best_s(run: Callable[[], object], at_least_s: float = 1.0) -> float:
    """Shortest time of `run`, tried for at least a second and 5 times."""
    run()
    best, tries, started = float("inf"), 0, time.perf_counter()
    while tries < 5 or time.perf_counter() - started < at_least_s:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        tries += 1
    return best


def gemm_bound_s(model: Llama, case: list[tuple[int, int]]) -> float:
    """The products with weights alone."""
    c, rows = model.config, sum(new for new, _ in case)
    kv = 2 * c.kv_heads * c.head_dim
    q = c.heads * c.head_dim
    inner = [(c.hidden, q + kv), (q, c.hidden), (c.hidden, 2 * c.intermediate), (c.intermediate, c.hidden)]
    shapes = [(rows, k, n) for k, n in inner] * c.layers + [(len(case), c.hidden, c.vocab)]
    return _products_s([((m, k), (k, n)) for m, k, n in shapes], model.dtype)


def attention_bound_s(model: Llama, case: list[tuple[int, int]]) -> float:
    """Queries times keys, and weights times values: only what causality asks for, in strips of 64 rows."""
    c = model.config
    group, shapes = c.heads // c.kv_heads, []
    for new, context in case:
        for start in range(0, new, 64):
            rows = min(64, new - start)
            m, t = group * rows, context + start + rows
            shapes += [((c.kv_heads, m, c.head_dim), (c.kv_heads, c.head_dim, t))]
            shapes += [((c.kv_heads, m, t), (c.kv_heads, t, c.head_dim))]
    return c.layers * _products_s(shapes, model.dtype)


def _products_s(shapes: list[tuple[tuple[int, ...], tuple[int, ...]]], dtype: str) -> float:
    rng = np.random.default_rng(0)
    held: dict[Any, np.ndarray] = {}

    def array(*key: Any) -> np.ndarray:
        if key not in held:
            held[key] = rng.standard_normal(key[1]).astype(dtype)
        return held[key]

    work = [(array("a", a), array(i, b), np.empty((*a[:-1], b[-1]), dtype)) for i, (a, b) in enumerate(shapes)]

    def run() -> None:
        for a, b, out in work:
            np.matmul(a, b, out=out)

    return best_s(run)


class Clock:
    """Where time goes: nested sections, each credited with its own time only."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._stack: list[list[float]] = []

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        self._stack.append([0.0])
        try:
            yield
        finally:
            took = time.perf_counter() - start
            inner = self._stack.pop()[0]
            self.spent[name] = self.spent.get(name, 0.0) + took - inner
            if self._stack:
                self._stack[-1][0] += took

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.section(name):
                return function(*args, **kwargs)

        return wrapped


class TimedNumpy:
    """NumPy for one module, with some functions on the clock."""

    def __init__(self, clock: Clock, names: dict[str, str]) -> None:
        self._timed = {f: clock.timed(name, getattr(np, f)) for f, name in names.items()}

    def __getattr__(self, name: str) -> Any:
        return self._timed[name] if name in self._timed else getattr(np, name)


SECTIONS = ("weights", "attn product", "gather", "exp", "softmax", "norm", "rope", "swiglu", "plan", "sampling")


def breakdown(model: Llama, pieces: list[Piece], repeats: int) -> dict[str, float]:
    """Seconds per step by section, the step with the shortest total."""
    best: dict[str, float] = {}
    for _ in range(repeats):
        clock = Clock()
        inside = TimedNumpy(clock, {"matmul": "attn product", "take": "gather", "exp": "exp"})
        with (
            _patched(llama, "multiply", "weights", clock),
            _patched(_config, "sample", "sampling", clock),
            patch.object(Llama, "_plan", clock.timed("plan", Llama._plan)),
            patch.object(Llama, "_normed", clock.timed("norm", Llama._normed)),
            patch.object(Llama, "_feed_forward", clock.timed("swiglu", Llama._feed_forward)),
            patch.object(llama.Rotary, "at", clock.timed("rope", llama.Rotary.at)),
            patch.object(llama.PagedAttention, "attend", clock.timed("softmax", llama.PagedAttention.attend)),
            patch.object(_layers, "np", inside),
            clock.section("other"),
        ):
            model.execute(pieces)
        if not best or sum(clock.spent.values()) < sum(best.values()):
            best = clock.spent
    return best


def _patched(module: ModuleType, function: str, name: str, clock: Clock) -> Any:
    return patch.object(module, function, clock.timed(name, getattr(module, function)))


def main() -> None:
    """Print both tables."""
    given = parsed(__doc__, threads=int, spec="llama")
    started = time.perf_counter()
    model: Llama = make("executors", given.spec, **({"threads": given.threads} if given.threads else {}))
    made_s = time.perf_counter() - started
    model.allocate(4096, BLOCK)
    print(dict(model.describe()), f"made in {made_s * 1e3:.0f} ms\n")
    print(f"{'step':22}{'ms':>9}{'tokens/s':>10}{'gemm ms':>9}{'+attn ms':>10}{'ratio':>7}")
    rows = {}
    with threadpool_limits(model.describe()["threads"], "blas"):
        for name, case in CASES.items():
            pieces = pieces_of(model, case)
            gemm, attention = gemm_bound_s(model, case), attention_bound_s(model, case)
            step = best_s(lambda pieces=pieces: model.execute(pieces))  # type: ignore[misc]  # bound per turn
            rows[name] = breakdown(model, pieces, 50)
            rate = sum(new for new, _ in case) / step
            bound = gemm + attention
            print(f"{name:22}{step * 1e3:9.2f}{rate:10.0f}{gemm * 1e3:9.2f}{bound * 1e3:10.2f}{bound / step:7.2f}")
    print(f"\n{'ms per step':22}" + "".join(f"{s:>14}" for s in (*SECTIONS, "other")) + f"{'total':>9}")
    for name, spent in rows.items():
        cells = "".join(f"{spent.get(s, 0.0) * 1e3:14.3f}" for s in (*SECTIONS, "other"))
        print(f"{name:22}{cells}{sum(spent.values()) * 1e3:9.2f}")


if __name__ == "__main__":
    main()
