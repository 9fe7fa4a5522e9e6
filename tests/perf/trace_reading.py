"""How fast traces are read: synthetic files of 0.1, 1 and 10 million rows are read, checked and written as Parquet.

    python tests/perf/trace_reading.py                        # every format, 0.1, 1 and 10 million rows
    python tests/perf/trace_reading.py --rows 1e6 azure csv   # one size, some formats

Each case runs in a process of its own on one core; printed are seconds, those that the core worked for it (the others
went to whatever else ran), and the largest memory.
What is wanted: 10 million rows of CSV in under 60 s and under 1 GB, and time that grows in step with the rows.
"""

import argparse
import gzip
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CHUNK = 200_000
HEADERS = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n",
    "azure-2024": "TIMESTAMP,ContextTokens,GeneratedTokens\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
    "burstgpt-3": "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
    "csv": "at_s,prompt_tokens,output_tokens\n",
    "csv-quoted": '"at_s","prompt_tokens","output_tokens"\n',
    "jsonl": "",
}


def _dates(at_s: np.ndarray, digits: int, end: str) -> list[str]:
    stamps = np.datetime64("2024-05-12T00:00:00", "ns") + (at_s * 1e7).astype(np.int64) * np.timedelta64(100, "ns")
    return [s.replace("T", " ")[: 20 + digits] + end for s in np.datetime_as_string(stamps)]


def _cells(form: str, at_s: np.ndarray, rng: np.random.Generator, first: int) -> Iterator[tuple[str, ...]]:
    n = len(at_s)
    prompts, outputs = rng.integers(1, 4000, n), rng.integers(1, 900, n)
    lengths = [prompts.astype(str).tolist(), outputs.astype(str).tolist()]
    totals = (prompts + outputs).astype(str).tolist()
    whole = np.floor(at_s).astype(np.int64).astype(str).tolist()
    api = rng.random(n) < 0.95
    logs = np.where(api, "API log", "Conversation log").tolist()
    if form.startswith("azure"):
        yield from zip(_dates(at_s, *((6, "+00:00") if form == "azure-2024" else (7, ""))), *lengths, strict=True)
    elif form == "burstgpt":
        yield from zip(whole, ["ChatGPT"] * n, *lengths, totals, logs, strict=True)
    elif form == "burstgpt-3":
        users = [f"{first + i - i % 4:08x}-0a46-4bf0-aa08-89794e7a2b3f" for i in range(n)]
        sessions = np.where(api, "", users).tolist()
        stamps = [f"{s}.0" for s in whole]
        yield from zip(stamps, sessions, ["12"] * n, ["GPT-4"] * n, *lengths, totals, logs, strict=True)
    elif form == "csv-quoted":
        yield from zip([f'"{t:.6f}"' for t in at_s], *([f'"{c}"' for c in column] for column in lengths), strict=True)
    else:
        yield from zip([f"{t:.6f}" for t in at_s], *lengths, strict=True)


def make(file: Path, form: str, rows: int) -> None:
    """A file of that many rows; about 17 requests/s, in bursts."""
    rng = np.random.default_rng(0)
    opened: Callable[..., object] = gzip.open if file.suffix == ".gz" else open
    at_s = 0.0
    with opened(file, "wt", **({"compresslevel": 1} if file.suffix == ".gz" else {})) as out:  # type: ignore[attr-defined]
        out.write(HEADERS[form])
        for first in range(0, rows, CHUNK):
            times = at_s + np.cumsum(rng.gamma(0.5, 0.12, min(CHUNK, rows - first)))
            at_s = times[-1]
            cells = _cells(form, times, rng, first)
            if form == "jsonl":
                out.writelines(f'{{"at_s": {t}, "prompt_tokens": {p}, "output_tokens": {o}}}\n' for t, p, o in cells)
            else:
                out.writelines(",".join(row) + "\n" for row in cells)


def convert(file: str) -> None:
    """Read, check and write, as `bench trace convert` does; prints seconds, rows and peak memory in MB."""
    from workloads import traces

    start, start_cpu = time.perf_counter(), time.process_time()
    blocks = traces.blocks(file)
    with pq.ParquetWriter(f"{file}.parquet", blocks.schema, compression="zstd", compression_level=1) as writer:
        for table in blocks:
            writer.write_table(table)
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(seconds, cpu_s, blocks.facts["rows"], peak_mb, Path(f"{file}.parquet").stat().st_size / 1e6)


def measure(file: Path) -> tuple[float, float, int, float, float]:
    """`convert` in a process of its own, on one core: seconds, those the core worked, rows, peak MB, MB written."""
    core = min(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(core), sys.executable, __file__, "--convert", str(file)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=one_thread)
    seconds, cpu_s, rows, peak_mb, written_mb = map(float, done.stdout.split())
    return seconds, cpu_s, int(rows), peak_mb, written_mb


def main() -> None:
    """Print a line for every format and size."""
    forms = [*HEADERS, "azure.gz", "burstgpt.gz"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, action="append", help="rows of a file; may be given several times")
    parser.add_argument("--convert", help=argparse.SUPPRESS)
    parser.add_argument("formats", nargs="*", help=f"some of {', '.join(forms)}; without any, all")
    given = parser.parse_args()
    if given.convert:
        pa.set_cpu_count(1)
        convert(given.convert)
        return
    print(f"{'format':<12}{'rows':>12}{'file MB':>10}{'Parquet MB':>12}{'seconds':>10}{'CPU s':>8}{'peak MB':>10}")
    for form in given.formats or forms:
        for rows in given.rows or [1e5, 1e6, 1e7]:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / f"trace.csv{'.gz' if form.endswith('.gz') else ''}"
                make(file, form.removesuffix(".gz"), int(rows))
                size_mb = file.stat().st_size / 1e6
                seconds, cpu_s, read, peak_mb, written_mb = measure(file)
            assert read == int(rows)
            row = f"{form:<12}{read:>12,}{size_mb:>10.1f}{written_mb:>12.1f}{seconds:>10.2f}{cpu_s:>8.2f}"
            print(f"{row}{peak_mb:>10.0f}", flush=True)


if __name__ == "__main__":
    main()
