"""Measures the size of the product and of the reading path.

    python tools/size.py              the figures of this checkout
    python tools/size.py --list       and the places behind each figure
    python tools/size.py --path       the reading path of `bench run --backend sim`: files, lines, and what runs

Product: the four packages. A private helper is a function or method whose name starts with one underscore; it is called
once when its name occurs in exactly one other place of the product. Lines of a function are those of its body, without
its docstring. A cycle may include imports inside functions.
"""

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PACKAGES = ("harness", "workloads", "backends", "reports")
SHORT_LINES, LONG_LINES = 3, 60
ROOTS = ("harness/cli/", "harness/results.py", "harness/registry.py")
"""The files that may name the packages beside harness."""
READ_LINES = 20
"""Minimum lines of executed functions for a file to be on the reading path."""
RUN = """
import collections, json, sys
ran = collections.defaultdict(set)
def note(frame, event, _):  # of calls alone, as it gives nothing that would trace their lines
    ran[frame.f_code.co_filename].add(frame.f_code.co_firstlineno)
sys.settrace(note)
from harness.cli import main
main(["run", "--backend", "sim", "--requests", "200", "--no-html", "--quiet", "--out", sys.argv[1]])
sys.settrace(None)
print("\\n" + json.dumps({file: sorted(lines) for file, lines in ran.items()}))
"""


@dataclass(frozen=True)
class Source:
    """A file of the product."""

    path: str
    module: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax, parsed for those who look at it: half a thousand files take seconds."""
        return ast.parse(self.text)


def sources(top: Path = TOP) -> list[Source]:
    """All files of the product in order of their paths."""
    found = []
    for path in sorted(p for package in PACKAGES for p in (top / package).rglob("*.py")):
        name, text = path.relative_to(top), path.read_text(encoding="utf-8")
        module = ".".join(name.with_suffix("").parts).removesuffix(".__init__")
        found.append(Source(str(name), module, text))
    return found


def _functions(tree: ast.AST) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
    assert node.end_lineno is not None
    return node.end_lineno - body[0].lineno + 1


def short_helpers(files: list[Source]) -> list[str]:
    """Private functions of at most three lines that are called once."""
    names = Counter(word for file in files for word in re.findall(r"\b_[a-z]\w*", file.text))
    found = []
    for file in files:
        defined = Counter(name for name, _ in _functions(file.tree))
        own = Counter(re.findall(r"\b_[a-z]\w*", file.text))
        for name, node in _functions(file.tree):
            private = name.startswith("_") and not name.startswith("__")
            if not private or defined[name] > 1 or node.decorator_list or _body_lines(node) > SHORT_LINES:
                continue
            if own[name] == 2 and (names[name] == 2 or not _taken(files, file, name)):
                found.append(f"{file.path}:{node.lineno} {name}")
    return found


def _taken(files: list[Source], own: Source, name: str) -> bool:
    """Whether another file imports the name of `own`, or calls it as an attribute."""
    stem = own.module.rpartition(".")[2]
    return any(
        file is not own
        and (f".{name}" in file.text or re.search(rf"import [^\n]*\b{name}\b", file.text))
        and stem in file.text
        for file in files
    )


def long_functions(files: list[Source]) -> list[str]:
    """Functions with more than sixty lines, the longest first."""
    found = [(_body_lines(n), f"{file.path}:{n.lineno} {name}") for file in files for name, n in _functions(file.tree)]
    return [f"{place}: {lines} lines" for lines, place in sorted(found, reverse=True) if lines > LONG_LINES]


def siblings(files: list[Source]) -> list[str]:
    """Places in harness, outside the commands, the Python API and the registry, that name another package."""
    others = "|".join(p for p in PACKAGES if p != "harness")
    named = re.compile(rf"^[ \t]*(?:from|import) (?:{others})\b|[\"'](?:{others})\.[a-z_.]+[\"'{{]", re.MULTILINE)
    return [
        f"{file.path}:{file.text.count(chr(10), 0, m.start()) + 1} {m.group().strip()}"
        for file in files
        if file.path.startswith("harness/") and not file.path.startswith(ROOTS)
        for m in named.finditer(file.text)
        if not file.text[: m.start()].rstrip().endswith("#")
    ]


def imports(files: list[Source]) -> dict[str, set[str]]:
    """Which modules of the product each imports at run time, anywhere in the file; not for types alone."""
    known = {file.module for file in files}
    graph: dict[str, set[str]] = {}
    for file in files:
        graph[file.module] = found = set[str]()
        typed = {
            inner
            for node in ast.walk(file.tree)
            if isinstance(node, ast.If)
            and isinstance(node.test, ast.Name | ast.Attribute)
            and ast.unparse(node.test).endswith("TYPE_CHECKING")
            for inner in ast.walk(node)
        }
        for node in ast.walk(file.tree):
            if node in typed:
                continue
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names} & known
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    found |= {full if full in known else node.module} & known
        found.discard(file.module)
    return graph


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Import cycles: strongly connected components (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[str] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in graph.get(module, ()):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            if len(members := stack[at:]) > 1:
                found.append(" <-> ".join(sorted(members)))
            del stack[at:]

    sys.setrecursionlimit(10_000)
    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def reading_path(folder: Path) -> list[tuple[str, int, int]]:
    """The files that `bench run --backend sim` takes from harness, workloads and backends, with the lines of each.

    The second number is of the functions that ran. Reports are not on the path: what they print is read elsewhere.
    """
    command = [sys.executable, "-c", RUN, str(folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    ran: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])
    found = []
    for file in sources():
        if not (starts := set(ran.get(str(TOP / file.path), ()))):
            continue
        lines = 0
        for _, node in _functions(file.tree):
            assert node.end_lineno is not None
            begins = {node.lineno, *(decorator.lineno for decorator in node.decorator_list)}
            lines += node.end_lineno - node.lineno + 1 if begins & starts else 0
        if lines >= READ_LINES and not file.path.startswith("reports/"):
            found.append((file.path, len(file.text.splitlines()), lines))
    return found


def main(options: list[str]) -> None:
    """Print the figures."""
    files = sources()
    if options == ["--path"]:
        with tempfile.TemporaryDirectory() as folder:
            path = reading_path(Path(folder))
        print("\n".join(f"{lines:6,} {ran:6,}  {name}" for name, lines, ran in path))
        print(
            f"{len(path)} files of {sum(row[1] for row in path):,} lines, {sum(row[2] for row in path):,} of them run"
        )
        return
    for package in PACKAGES:
        own = [file for file in files if file.path.startswith(f"{package}/")]
        print(f"{package:10} {sum(f.text.count(chr(10)) for f in own):7,} lines {len(own):5} files")
    print(f"{'all':10} {sum(f.text.count(chr(10)) for f in files):7,} lines {len(files):5} files")
    wide = Counter(str(Path(file.path).parent) for file in files).most_common(3)
    classes = Counter(n.name for f in files for n in ast.walk(f.tree) if isinstance(n, ast.ClassDef))
    lists: list[tuple[str, list[str]]] = [
        (f"private helpers called once with at most {SHORT_LINES} lines", short_helpers(files)),
        (f"functions of more than {LONG_LINES} lines", long_functions(files)),
        ("Any", [f"{f.path} {n}" for f in files if (n := len(re.findall(r"\bAny\b", f.text)))]),
        ("dict[str, Any] or Mapping[str, object]", [
            f"{f.path} {n}" for f in files
            if (n := len(re.findall(r"(?:dict|Mapping)\[str, (?:Any|object)\]", f.text)))
        ]),
        ("class names used twice", [f"{name} {n}" for name, n in classes.most_common() if n > 1]),
        ("other packages named below the commands and the Python API", siblings(files)),
        ("import circles", circles(imports(files))),
    ]  # fmt: skip
    for title, places in lists:
        counted = sum(int(p.split()[-1]) for p in places) if title in ("Any", lists[3][0]) else len(places)
        print(f"{title}: {counted}")
        if "--list" in options:
            print("\n".join(f"    {place}" for place in places))
    print("widest folders: " + ", ".join(f"{folder} {n} files" for folder, n in wide))


if __name__ == "__main__":
    main(sys.argv[1:])
