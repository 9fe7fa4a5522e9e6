"""Compares the results of all commands before and after a refactoring.

    python tools/facts.py make FOLDER               write the gallery, and run the commands of facts.toml
    python tools/facts.py compare OLD AGAIN NEW     list what NEW lacks; exit code 1 if anything

OLD and AGAIN are from the same commit; what differs between them (times of day, durations) is ignored. NEW must contain
everything else: each value of each JSON file, each column of each table (as a hash), the data and layout of each
figure, each line of CSV, and each number with its unit in text, markdown and HTML, as often as before. Wording may
change; files with other words are only listed.
"""

import base64
import contextlib
import gzip
import hashlib
import html
import io
import itertools
import json
import re
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pyarrow import parquet

TOP = Path(__file__).resolve().parents[1]
HIDDEN = re.compile(r"<(script|style|svg)\b.*?</\1>", re.DOTALL)
PACKED = re.compile(r'<script type="text/plain" id="data">\s*\'?(.*?)\'?\s*</script>', re.DOTALL)
NUMBER = re.compile(
    r"(?<![\w.])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?"
    r"\s?(?:%|ms\b|µs\b|us\b|s\b|min\b|h\b|req/s\b|tok/s\b|tokens?\b|requests?\b|points?\b|[kMGT]i?B\b|times\b|x\b)?"
)


def make(folder: Path) -> None:
    """Run the gallery and the commands of facts.toml in a new `folder`; their output goes to FOLDER/printed/."""
    sys.path.insert(0, str(TOP / "docs" / "examples"))
    import gallery

    gallery.make(folder)
    commands = tomllib.loads((TOP / "tools" / "facts.toml").read_text(encoding="utf-8"))["commands"]
    (folder / "printed").mkdir()
    with contextlib.chdir(folder):
        for command in itertools.chain.from_iterable(_spread(line) for line in commands.strip().splitlines()):
            name = re.sub(r"[^\w.=-]+", "_", command.removeprefix("bench "))[:150]
            Path("printed", f"{name}.txt").write_text(_run(command), encoding="utf-8")


def _spread(command: str) -> Iterator[str]:
    from harness import registry

    kind = re.search(r"\{(\w+)\}", command)
    for name in registry.names(kind.group(1)) if kind else [""]:
        yield command.replace(kind.group(), name) if kind else command


def _run(command: str) -> str:
    from harness.cli import main

    sys.argv = shlex.split(command)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(sys.argv[1:])
    print(code, command, flush=True)
    return f"$ {command}\n{out.getvalue()}{err.getvalue()}\nexit code {code}\n"


def facts(path: Path) -> Counter[str]:
    """The facts of a file, each as a line of text with its count."""
    match path.suffix:
        case ".json":
            return Counter(_leaves("", json.loads(path.read_text(encoding="utf-8"))))
        case ".jsonl":
            lines = path.read_text(encoding="utf-8").splitlines()
            return Counter(_leaves("", [json.loads(line) for line in lines]))
        case ".parquet":
            return Counter(_columns(path))
        case ".html":
            page = path.read_text(encoding="utf-8")
            return Counter(_figures(page)) + _numbers(html.unescape(re.sub(r"<[^>]*>", " ", HIDDEN.sub(" ", page))))
        case ".csv":
            return Counter(path.read_text(encoding="utf-8").splitlines())
        case _:
            return _numbers(path.read_text(encoding="utf-8", errors="replace"))


def _leaves(path: str, value: object) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(f"{path}[{index}]", inner)
    else:
        yield f"{path} = {json.dumps(value)}"


def _columns(path: Path) -> Iterator[str]:
    table = parquet.read_table(path)
    yield f"metadata {table.schema.metadata}"
    for name, field, column in zip(table.column_names, table.schema, table.columns, strict=True):
        digest = hashlib.sha256(json.dumps(column.to_pylist(), default=str).encode()).hexdigest()
        yield f"{name}: {field.type}, {field.metadata}, {digest}"


def _figures(page: str) -> Iterator[str]:
    for packed in PACKED.findall(page):
        content = json.loads(gzip.decompress(base64.b64decode(packed)))
        for figure in content["figures"]:
            yield from _leaves(f"figure {figure.pop('key')}", figure)


def _numbers(text: str) -> Counter[str]:
    return Counter(re.sub(r"\s+", " ", found) for found in NUMBER.findall(text))


def _files(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _words(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace")
    return " ".join(re.sub(r"<[^>]*>|\d+", " ", HIDDEN.sub(" ", text)).split())


def compare(old: Path, again: Path, new: Path, out: io.TextIOBase) -> int:
    """Write what NEW lacks and what it adds; returns the number of missing facts."""
    first, second, third = _files(old), _files(again), _files(new)
    held = lost = 0
    for name, path in first.items():
        if name not in second:
            continue
        stable = facts(path) & facts(second[name])
        held += stable.total()
        if name not in third:
            lost += stable.total()
            out.write(f"{name}: the file is gone, with {stable.total()} facts\n")
            continue
        there = facts(third[name])
        missing = stable - there
        lost += missing.total()
        for fact, times in sorted(missing.items()):
            out.write(f"{name}: gone: {fact[:300]}{f' ({times} times)' if times > 1 else ''}\n")
        for fact, _ in sorted((there - facts(path) - facts(second[name])).items()):
            if missing:
                out.write(f"{name}: new:  {fact[:300]}\n")
        prose = path.suffix in (".txt", ".md", ".html", ".xml")
        if prose and _words(path) == _words(second[name]) != _words(third[name]):
            out.write(f"{name}: other words\n")
    for name in third.keys() - first.keys():
        out.write(f"{name}: a new file\n")
    out.write(f"{held} facts in {len(first)} files; {lost} of them are gone\n")
    return lost


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", folder] if not Path(folder).exists():
            make(Path(folder).resolve())
        case ["compare", old, again, new]:
            raise SystemExit(compare(Path(old), Path(again), Path(new), sys.stdout) > 0)
        case _:
            raise SystemExit(__doc__)
