"""LongBench lengths: 3 of its 21 tasks from stored quantiles, or all tasks from the files that a user has."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness import untrusted
from harness.errors import UsageError
from workloads.lengths._empirical import CHUNK, load
from workloads.lengths._rows import SampledLengths
from workloads.readers import _lines, _texts

TASKS = (
    "2wikimqa", "dureader", "gov_report", "hotpotqa", "lcc", "lsht", "multi_news", "multifieldqa_en", "multifieldqa_zh",
    "musique", "narrativeqa", "passage_count", "passage_retrieval_en", "passage_retrieval_zh", "qasper", "qmsum",
    "repobench-p", "samsum", "trec", "triviaqa", "vcsum",
)  # fmt: skip
"""Files of `data.zip` without their ending. Source: THUDM/LongBench @ 2e00731f, LongBench/task.md."""

KEEP_CHARACTERS, KEEP_TOKENS, CUTS_TOKENS = 40_000, 2040, np.arange(1900, 2049)
"""What DistServe keeps of a context: so many characters, then so many tokens with the answer, and at most one of these
numbers at random. Source: LLMServe/DistServe, evaluation/2-benchmark-serving/0-prepare-dataset.py."""


@dataclass(frozen=True, slots=True)
class Longbench(SampledLengths):
    """Prompt and output tokens of LongBench (summarization, questions, code) as DistServe cuts them.

    Without `path` from the quantiles of three tasks only (multi_news, multifieldqa_zh, passage_retrieval_zh; 200 rows
    each, OPT tokenizer, mean 1,821 / 109); DistServe gives 1,738.3 / 90.7 for all 21. With `path`, a folder with the
    task files of LongBench (`hotpotqa.jsonl`, ...), rows are drawn from all tasks that are there, counted by
    `tokenizer`: the path of a Hugging Face `tokenizer.json`, or bytes for an estimate of 4 bytes a token; missing tasks
    are named in `facts`. DistServe cuts the context to min(2,040 - answer, a random 1,900..2,048) tokens; the first
    reference answer is the output. Source: THUDM/LongBench and LLMServe/DistServe.
    """

    path: str | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        if self.path is None:
            if self.tokenizer is not None:
                raise ValueError("tokenizer counts the files of path; give both, or none.")
            object.__setattr__(self, "sampler", load("longbench"))
        else:
            object.__setattr__(self, "sampler", _read(self.path, self.tokenizer))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Contexts and answers (N,) in tokens, each row as likely as any other, its cut drawn anew."""

    context: np.ndarray
    answer: np.ndarray
    facts: Mapping[str, object]

    @property
    def mean_tokens(self) -> tuple[float, float]:
        return float(self._prompts().mean()), float(self.answer.mean())

    def quantile_tokens(self, percent: int) -> tuple[int, int]:
        sides = (self._prompts().ravel(), self.answer)
        prompt, output = (int(np.quantile(x, percent / 100, method="inverted_cdf")) for x in sides)
        return prompt, output

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        while True:
            row = rng.integers(len(self.context), size=CHUNK)
            prompts = _cut(self.context[row], self.answer[row], rng.choice(CUTS_TOKENS, CHUNK))
            yield from zip(prompts.tolist(), self.answer[row].tolist(), strict=True)

    def _prompts(self) -> np.ndarray:
        """(N, cuts) every row at every cut."""
        return _cut(self.context[:, None], self.answer[:, None], CUTS_TOKENS)


def _cut(context: np.ndarray, answer: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(1, np.minimum(context, np.minimum(KEEP_TOKENS - answer, cuts))))


def _read(path: str, tokenizer: str | None) -> _Rows:
    encode = _texts.encoder(tokenizer)
    if encode is None:
        raise UsageError(
            f"'longbench:path={path}' holds text, no token counts; add tokenizer=PATH/tokenizer.json, or "
            f"tokenizer={_texts.BYTES} for an estimate ({_texts.BYTES_PER_TOKEN} bytes a token)."
        )
    folder = Path(path) / "data" if (Path(path) / "data").is_dir() else Path(path)
    files = {task: folder / f"{task}.jsonl" for task in TASKS}
    there = [task for task, file in files.items() if file.is_file()]
    if not there:
        names = ", ".join(f"{task}.jsonl" for task in TASKS[:3])
        raise UsageError(f"'{folder}' holds no task file of LongBench ({names}, ...); unpack its data.zip there.")
    rows = [pair for task in there for pair in _lengths(files[task], encode)]
    counts = np.array([row for row in rows if 1 <= row[1] < KEEP_TOKENS and row[0] >= 1], np.int64).reshape(-1, 2)
    if not len(counts):
        raise UsageError(f"'{folder}': no row of LongBench has a context and an answer below {KEEP_TOKENS:,} tokens.")
    missing = [task for task in TASKS if task not in there]
    without = f"; missing: {', '.join(missing)}" if missing else ""
    facts = {
        "preparation": f"DistServe's: context cut to {KEEP_CHARACTERS:,} characters, then to min({KEEP_TOKENS:,} - "
        f"answer, a random {CUTS_TOKENS[0]:,}..{CUTS_TOKENS[-1]:,}) tokens, the first reference answer is the output; "
        f"{len(there)} of the {len(TASKS)} tasks, {len(counts):,} rows, {len(rows) - len(counts):,} left out (empty, "
        f"or answers of {KEEP_TOKENS:,} tokens and more){without}",
        "tokenizer": _texts.ESTIMATED if tokenizer == _texts.BYTES else f"{tokenizer}, without special tokens",
        "source": f"THUDM/LongBench, files in {folder}",
        "licence": "MIT (the repository); the data sets inside LongBench have licences of their own",
        "tasks_missing": missing,
    }
    return _Rows(counts[:, 0], counts[:, 1], facts)


def _lengths(file: Path, encode: _texts.Encode) -> Iterator[tuple[int, int]]:
    """(context, first answer) of each row, in tokens; the file is read line by line."""
    for number, text in _lines.numbered(_lines.checked(str(file))):
        where = f"LongBench file '{file}', line {number}"
        try:
            row = untrusted.parse_json(text, where)
        except json.JSONDecodeError as error:
            raise UsageError(f"{where}: not complete JSON ({error.msg}).") from None
        context, answers = (row.get("context"), row.get("answers")) if isinstance(row, dict) else (None, None)
        if (
            not isinstance(context, str)
            or not isinstance(answers, list)
            or not all(isinstance(a, str) for a in answers)
        ):
            raise UsageError(f"{where}: an object with the text 'context' and the list 'answers' expected.")
        kept, answer = encode([context[:KEEP_CHARACTERS]])[0], encode([answers[0] if answers else ""])[0]
        yield len(kept), len(answer)
