"""Finds words that are not standard in this field; `tools/words.toml` lists them with their replacements.

python tools/words.py [PATH...]      every occurrence with its replacement; exit code 1 if there is any
python tools/words.py --count        counts per word and folder
"""

import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[1]
ENDINGS = {".py", ".md", ".toml", ".j2", ".js", ".css"}
NOT_READ = (
    "tools/words.",
    "tests/docs/test_words.py",
    "tests/golden/",
    "docs/claims.json",
    "changelog.d/",
    "CHANGELOG.md",
    "docs/design/",
)
"""The table itself, stored output of other programs, and records of the past."""


class Place(NamedTuple):
    """A word at a line of a file, and what to write instead."""

    file: str
    line: int
    word: str
    write: str


class Words:
    """The table: a pattern over all words, and what each stands for."""

    def __init__(self, table: dict[str, object]) -> None:
        rows = table["word"]
        assert isinstance(rows, list)
        self._rows = [(re.compile(rf"\b(?:{'|'.join(row['words'])})\b", re.IGNORECASE), row["write"]) for row in rows]
        self._any = re.compile(
            rf"(?<![a-z])(?:{'|'.join(word for row in rows for word in row['words'])})(?![a-z])", re.IGNORECASE
        )
        self._of_names: dict[str, list[tuple[int, str, str]]] = {}
        public = table["public"]
        assert isinstance(public, list)
        self._public = {str(name) for name in public}
        self._prefixes = tuple(name for name in self._public if name.endswith("-"))

    def of_text(self, text: str) -> Iterator[tuple[int, str, str]]:
        """(offset, word, what to write) in prose."""
        if self._any.search(text) is None:
            return
        for pattern, write in self._rows:
            for match in pattern.finditer(text):
                if not text.startswith(self._prefixes, match.start()):
                    yield match.start(), match.group(), write

    def of_name(self, name: str) -> Iterator[tuple[int, str, str]]:
        """The same in an identifier: `was_told` and `ToldOf` hold the word `told`."""
        if name not in self._of_names:
            spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ")
            self._of_names[name] = [*self.of_text(spaced), *(self.of_text(name.strip("_")) if "_" in name else ())]
        yield from self._of_names[name]

    def of_python(self, text: str) -> Iterator[tuple[int, str, str]]:
        """(line, word, what to write) in names, strings and comments; a string that is a public key is none."""
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
        if not self._any.search(spaced) and not self._any.search(spaced.replace("_", " ")):
            return
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and not ("_" in token.string and token.string in self._public):
                yield from ((token.start[0], word, write) for _, word, write in self.of_name(token.string))
            elif token.type in (tokenize.STRING, tokenize.COMMENT) and token.string.strip("rbf\"'") not in self._public:
                for offset, word, write in self.of_text(token.string.replace("_", " ")):
                    yield token.start[0] + token.string.count("\n", 0, offset), word, write


def places(files: list[Path]) -> Iterator[Place]:
    """Every place in these files."""
    words = Words(tomllib.loads((TOP / "tools" / "words.toml").read_text(encoding="utf-8")))
    for file in files:
        text, name = file.read_text(encoding="utf-8"), str(file.relative_to(TOP))
        if file.suffix == ".py":
            yield from (Place(name, *found) for found in words.of_python(text))
        else:
            for offset, word, write in words.of_text(text):
                yield Place(name, text.count("\n", 0, offset) + 1, word, write)


def tracked(paths: list[str]) -> list[Path]:
    """The files of the project below these paths that are read."""
    command = ["git", "ls-files", *paths]
    listed = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.splitlines() if Path(name).suffix in ENDINGS and not name.startswith(NOT_READ)]
    return [TOP / name for name in names if (TOP / name).is_file()]


def main(arguments: list[str]) -> int:
    """Print the places, or how many there are."""
    count = "--count" in arguments
    found = sorted(set(places(tracked([given for given in arguments if given != "--count"]))))
    if count:
        for (folder, word), n in Counter((p.file.partition("/")[0], p.word.lower()) for p in found).most_common():
            print(f"{n:6,} {word:16} {folder}")
    else:
        for place in found:
            print(f"{place.file}:{place.line}: '{place.word}': {place.write}")
    print(f"{len(found):,} places")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
