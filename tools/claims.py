"""Checks and renews the measured figures of README and guides: docs/claims.json.

A page may state a measured figure (a speed, a share, an error) only if docs/claims.json lists it with its command,
commit, number of cases and worst case. A number that is not a measurement (a default, a definition, an example, a
published number) is listed there under "not_measured".

    python tools/claims.py check                        every figure without an entry, and every entry without a figure
    python tools/claims.py renew [--only ID]            measure again those of at most 2 minutes, or all of ID's command
    python tools/claims.py except PAGE WHY TEXT         list TEXT of PAGE as not measured: default, definition, ...
    python tools/claims.py add ID PAGE --lines 40-44 --command ... --find ... --cases 28 --chosen drawn --worst ...
                                                        list a figure of these lines of a page, with its numbers there
    python tools/claims.py prune                        drop the exceptions whose text is no longer on their page
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
FILE = "docs/claims.json"
REASONS = ("default", "definition", "example", "published", "requirement", "format")
CHOSEN = ("drawn at random", "chosen by hand", "all there are")
KEYS = {
    "id", "pages", "text", "unit", "values", "command", "find", "take", "tolerance",
    "cases", "chosen", "worst", "minutes", "commit", "date", "machine",
}  # fmt: skip
SHORT_MINUTES = 2
MEASURED_CODE = (
    "harness",
    "workloads",
    "backends",
    "reports",
    "tests/perf",
    "tests/published",
    "tests/real",
)

NUMBER = r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\.?\d)"
WORD = r"(?:half an?|an?|one|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|hundreds|some|a few)"
UNIT = (
    r"(?:\s?%|\s*(?:CPU\s+)?(?:percent|points?|ms|µs|us|s|seconds?|minutes?|hours?|times|x|[kKMG]i?B|bytes|req/s)(?![\w-])"
    r"|\s+(?:requests?|tokens?)\s+(?:per|a)\s+(?:\w+\s+)?second)"
)
FIGURES = (
    rf"{NUMBER}(?:\s?(?:,|/|,?\s+(?:to|and|or|of)\s)\s*{NUMBER})*{UNIT}",
    rf"{NUMBER} of {NUMBER}",
    rf"factor of {NUMBER}",
    r"(?<![\w.])\d{1,3}(?:,\d{3})+(?![\d,])",
    r"(?<![\w.-])\d+\.\d+(?!\.?[\w])",
    rf"{NUMBER} (?:presets|systems|tests|searches|cases|comparisons|models|policies)\b",
    rf"(?i)\b{WORD} (?:CPU )?(?:seconds|minutes?|hours?)\b",
    rf"(?i)\b{WORD} (?:times )?(?:out )?of (?:{WORD}|all|the requests)\b",
    r"(?i)\ban? (?:half|third|quarter|fifth|sixth|tenth)\b",
    r"(?i)\b(?:takes?|took|in) (?:seconds|minutes|hours)\b",
)
"""Patterns of a figure in prose: a number with a unit, a count of cases, a number with decimals."""
CELL = rf"(?<=\|)[ *]*({NUMBER})[ *]*(?=\|)"
"""A cell of a table that holds a number alone; not in the first column, which holds settings and exit codes."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a page: its text and position."""

    page: str
    line: int
    text: str
    span: tuple[int, int]


def pages() -> list[str]:
    """Pages whose figures are checked. `docs/systems.md` and `docs/leaderboard.md` are outputs of a command."""
    guides = sorted(path.relative_to(TOP).as_posix() for path in (TOP / "docs" / "guide").glob("*.md"))
    return ["README.md", *guides, "docs/ci.md", "docs/clients.md", "docs/reports.md"]


def prose(text: str) -> str:
    """The page with code, commands and link targets replaced by blanks; offsets stay."""
    for code in (r"(?ms)^ *```.*?^ *```[ ]*$", r"(?m)(?<=\n\n)(?: {4}[^\n]*\n)+", r"`[^`]+`", r"\]\([^)]*\)"):
        text = re.sub(code, lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def figures(page: str, text: str) -> list[Figure]:
    """Every figure of a page in order; of overlapping ones the longest."""
    plain = prose(text)
    spans = {found.span() for pattern in FIGURES for found in re.finditer(pattern, plain)}
    for row in re.finditer(r"(?m)^ *\|[^|\n]*(\|.*)$", plain):
        spans |= {(row.start(1) + found.start(1), row.start(1) + found.end(1)) for found in re.finditer(CELL, row[1])}
    kept = [one for one in spans if not any(other != one and _within(one, other) for other in spans)]
    return [
        Figure(page, plain.count("\n", 0, start) + 1, " ".join(plain[start:end].split()), (start, end))
        for start, end in sorted(kept)
    ]


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def places(snippet: str, text: str) -> list[tuple[int, int]]:
    """Positions of a snippet on a page, across line breaks."""
    start = r"(?<!\w)" if snippet[0].isalnum() else ""
    end = r"(?!\w)" if snippet[-1].isalnum() else ""
    return [found.span() for found in re.finditer(start + r"\s+".join(map(re.escape, snippet.split())) + end, text)]


def numbers(snippet: str) -> list[tuple[float, float]]:
    """Every number in the prose of a snippet, with half a unit of its last digit: the rounding error."""
    found = [one.replace(",", "") for one in re.findall(NUMBER, prose(snippet))]
    return [(float(one), 0.5 * 10 ** -len(one.partition(".")[2])) for one in found]


def disagreements(claim: dict[str, Any]) -> list[str]:
    """Numbers of the text that are not what was measured, beyond rounding or the stated relative tolerance."""
    stated = [number for snippet in claim["text"] for number in numbers(snippet)]
    if len(stated) != len(claim["values"]):
        return [f"its text has {len(stated)} numbers and {len(claim['values'])} values"]
    relative = claim["tolerance"] or 0.0
    return [
        f"the page says {number:,g} and {value:,.4g} was measured"
        for (number, rounding), value in zip(stated, claim["values"], strict=True)
        if abs(number - value) > max(rounding, relative * abs(value)) * 1.000001
    ]


def ill_formed(claims: dict[str, Any]) -> Iterator[str]:
    """Problems of the file itself."""
    seen: set[str] = set()
    for claim in claims["claims"]:
        name = claim.get("id", "a claim without id")
        if set(claim) != KEYS:
            yield f"{name}: its keys must be {', '.join(sorted(KEYS))}; check {', '.join(sorted(KEYS ^ set(claim)))}."
            continue
        if name in seen:
            yield f"{name}: duplicate id."
        seen.add(name)
        if not (claim["worst"] and claim["unit"] and claim["pages"] and claim["text"] and claim["values"]):
            yield f"{name}: worst, unit, pages, text and values must not be empty."
        if claim["cases"] < 1 or claim["chosen"] not in CHOSEN:
            yield f"{name}: cases must be positive, and chosen one of: {', '.join(CHOSEN)}."
        if not re.fullmatch(r"[0-9a-f]{7,40}\+?", claim["commit"]) or not re.fullmatch(
            r"\d{4}-\d\d-\d\d", claim["date"]
        ):
            yield f"{name}: commit must be a commit (with + where files were changed), date a day."
        scripts = [word for word in shlex.split(claim["command"]) if word.endswith(".py")]
        if not scripts and not claim["command"].startswith("bench "):
            yield f"{name}: command must be a script of the project or a bench command."
        yield from (f"{name}: {script} does not exist." for script in scripts if not (TOP / script).exists())
    for page, reasons in claims["not_measured"].items():
        yield from (
            f"{page}: '{why}' is no reason; known: {', '.join(REASONS)}." for why in reasons if why not in REASONS
        )


def problems(claims: dict[str, Any], texts: dict[str, str]) -> list[str]:
    """One sentence per disagreement of pages and claims."""
    found = list(ill_formed(claims))
    if found:
        return found
    covered: dict[str, list[tuple[int, int]]] = {page: [] for page in texts}
    for claim in claims["claims"]:
        found += [f"{claim['id']}: {one}; correct the page, or measure again." for one in disagreements(claim)]
        for page in claim["pages"]:
            for snippet in claim["text"]:
                spans = places(snippet, texts.get(page, ""))
                covered.setdefault(page, []).extend(spans)
                if not spans:
                    found.append(
                        f"{claim['id']}: {page} does not say '{snippet}' any more; correct or remove the claim."
                    )
    for page, snippets in exceptions(claims):
        for snippet in snippets:
            found_on = {one: places(snippet, text) for one, text in texts.items() if page in (one, "*")}
            for one, at in found_on.items():
                covered[one] += at
            if not any(found_on.values()):
                found.append(f"not_measured of {page}: '{snippet}' is not there any more; python tools/claims.py prune")
    for page, text in texts.items():
        for figure in figures(page, text):
            if not any(_within(figure.span, span) for span in covered[page]):
                found.append(
                    f"{page}:{figure.line}: '{figure.text}' has no claim. A measured figure needs an entry in {FILE} "
                    f"with its command; for a number that is not measured: "
                    f"python tools/claims.py except {page} {'|'.join(REASONS)} '{figure.text}'"
                )
    return found


def exceptions(claims: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Page and snippets of what is listed as not measured."""
    for page, reasons in claims["not_measured"].items():
        yield page, [snippet for snippets in reasons.values() for snippet in snippets]


def load() -> dict[str, Any]:
    """The stored claims."""
    stored: dict[str, Any] = json.loads((TOP / FILE).read_text(encoding="utf-8"))
    return stored


def read_pages() -> dict[str, str]:
    """The text of every page that is checked."""
    return {page: (TOP / page).read_text(encoding="utf-8") for page in pages()}


def store(claims: dict[str, Any]) -> None:
    """Write the claims, one short list on one line."""
    text = json.dumps(claims, indent=2, ensure_ascii=False)
    short = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")
    text = short.sub(lambda found: _on_one_line(found[0]), text)
    (TOP / FILE).write_text(text + "\n", encoding="utf-8")


def _on_one_line(values: str) -> str:
    row = json.loads(values)
    joined = json.dumps(row, ensure_ascii=False)
    return joined if len(joined) < 100 or not any(isinstance(value, str) for value in row) else values


def measured(claim: dict[str, Any], output: str) -> list[float]:
    """The values in the output of the command: every group of every match of `find`, or the ends of their range."""
    if claim["find"] is None:  # the command compares the page with what it computes, and fails where they differ
        return list(claim["values"])
    groups = [group for found in re.finditer(claim["find"], output) for group in found.groups()]
    values = [float(group.replace(",", "")) for group in groups if group]
    if not values:
        return []
    return {"each": values, "range": [min(values), max(values)], "min": [min(values)], "max": [max(values)]}[
        claim["take"]
    ]


def ran(command: str) -> tuple[int, str]:
    """Exit code and output of the command, run by this Python in the root of the project."""
    program, *arguments = shlex.split(command)
    python = [sys.executable] if program == "python" else [sys.executable, "-m", "harness"]
    done = subprocess.run([*python, *arguments], cwd=TOP, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def commit() -> str:
    """The commit that is checked out, with + where what is measured differs from it."""
    git = ["git", "-C", str(TOP)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", *MEASURED_CODE], capture_output=True, text=True, check=True
    )
    return head.strip() + ("+" if changed.stdout else "")


def renew(only: str | None) -> int:
    """Measure again, print old beside new, store; 1 where a page says something else or a command fails."""
    claims, bad, outputs = load(), False, dict[str, tuple[int, str]]()
    if only and only not in {claim["id"] for claim in claims["claims"]}:
        print(f"No claim '{only}'; known: {', '.join(claim['id'] for claim in claims['claims'])}.", file=sys.stderr)
        return 2
    wanted = {claim["command"] for claim in claims["claims"] if claim["id"] == only}
    for claim in claims["claims"]:
        if only and claim["command"] not in wanted:
            continue
        if not only and claim["minutes"] > SHORT_MINUTES:
            print(f"{claim['id']}: not measured, it takes {claim['minutes']} minutes: make claims ONLY={claim['id']}")
            continue
        if claim["command"] not in outputs:
            print(f"$ {claim['command']}", flush=True)
            outputs[claim["command"]] = ran(claim["command"])
        code, output = outputs[claim["command"]]
        values = measured(claim, output)
        if len(values) != len(claim["values"]) or (claim["find"] is None and code != 0):
            print(f"{claim['id']}: the command gave {len(values)} values of {len(claim['values'])}, exit code {code}:")
            print(output[-2000:])
            bad = True
            continue
        old, claim["values"] = claim["values"], values
        claim["commit"], claim["date"] = commit(), datetime.now(tz=UTC).date().isoformat()
        print(f"{claim['id']}: {_list(old)} -> {_list(values)} {claim['unit']}")
        for sentence in disagreements(claim):
            print(f"  {', '.join(claim['pages'])}: {sentence}; correct the page and 'text'")
            bad = True
        store(claims)
    return int(bad)


def add(claims: dict[str, Any], given: argparse.Namespace, text: str) -> None:
    """List a new claim; its values are the numbers of the page until it is measured again."""
    first, _, last = (given.lines or "1-0").partition("-")
    lines = text.splitlines()[int(first) - 1 : int(last or first)]
    snippets = [*given.text, *(line.strip() for line in lines)]
    claims["claims"].append(
        {
            "id": given.id, "pages": [given.page], "text": snippets,
            "values": [number for snippet in snippets for number, _ in numbers(snippet)],
            "unit": given.unit, "command": given.command, "find": given.find, "take": given.take,
            "tolerance": given.tolerance, "cases": given.cases,
            "chosen": next(known for known in CHOSEN if known.startswith(given.chosen)), "worst": given.worst,
            "minutes": given.minutes, "commit": commit(), "date": datetime.now(tz=UTC).date().isoformat(),
            "machine": given.machine,
        }
    )  # fmt: skip
    store(claims)


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:,.4g}" if value < 10_000 else f"{value:,.0f}" for value in values)


def main() -> int:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="do", required=True)
    commands.add_parser("check")
    commands.add_parser("renew").add_argument("--only", metavar="ID")
    commands.add_parser("prune")
    exception = commands.add_parser("except")
    exception.add_argument("page", choices=[*pages(), "*"], metavar="PAGE")
    exception.add_argument("why", choices=REASONS)
    exception.add_argument("text")
    new = commands.add_parser("add")
    new.add_argument("id")
    new.add_argument("page", choices=pages(), metavar="PAGE")
    new.add_argument("--text", action="append", default=[], help="as on the page; may be repeated")
    new.add_argument("--lines", help="instead of --text: lines of the page, 40-44")
    new.add_argument("--command", required=True)
    new.add_argument("--find", help="regular expression whose groups are the values; without it the command must fail")
    new.add_argument("--take", choices=("each", "range", "min", "max"), default="each")
    new.add_argument("--tolerance", type=float, help="relative; default: rounding")
    new.add_argument("--unit", required=True)
    new.add_argument("--cases", type=int, required=True)
    new.add_argument("--chosen", choices=[known.split()[0] for known in CHOSEN], required=True)
    new.add_argument("--worst", required=True)
    new.add_argument("--minutes", type=float, default=5)
    new.add_argument("--machine", default="any: the same on every machine")
    given = parser.parse_args()
    if given.do == "renew":
        return renew(given.only)
    claims, texts = load(), read_pages()
    if given.do == "except":
        snippets = claims["not_measured"].setdefault(given.page, {}).setdefault(given.why, [])
        snippets += [given.text] * (given.text not in snippets)
        store(claims)
    elif given.do == "add":
        add(claims, given, texts[given.page])
    elif given.do == "prune":
        for page, reasons in claims["not_measured"].items():
            of = texts.values() if page == "*" else [texts.get(page, "")]
            for why, snippets in reasons.items():
                reasons[why] = [one for one in snippets if any(places(one, text) for text in of)]
        kept = {page: {why: some for why, some in of.items() if some} for page, of in claims["not_measured"].items()}
        claims["not_measured"] = {page: of for page, of in kept.items() if of}
        store(claims)
    found = problems(claims, texts)
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
