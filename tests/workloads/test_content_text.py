"""Text with an exact number of tokens, under tokenizers of every common make."""

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.api import Request
from harness.errors import UsageError
from harness.registry import make
from workloads.content._words import FEWEST_WORDS
from workloads.content.text import Text

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import (  # noqa: E402  # after the skip
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "<s>"]


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    """Sentences of 400 made-up words, the frequent ones much more frequent."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list(LETTERS), rng.integers(2, 8))) for _ in range(400)]
    shares = 1 / np.arange(1, 401)
    return [" ".join(rng.choice(words, 60, p=shares / shares.sum())) for _ in range(200)]


def byte_level(add_prefix_space: bool) -> tuple[Any, Any]:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return made, trainers.BpeTrainer(
        vocab_size=800, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )


def metaspace(scheme: str) -> tuple[Any, Any]:
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return made, trainers.UnigramTrainer(vocab_size=500, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False)


def llama_like() -> tuple[Any, Any]:
    made = Tokenizer(models.BPE(unk_token="[UNK]"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    return made, trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)


def word_piece() -> tuple[Any, Any]:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made, trainers.WordPieceTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False)


def characters() -> tuple[Any, Any]:
    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return made, trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False)


MAKES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "byte-level": lambda: byte_level(False),
    "byte-level with a space in front": lambda: byte_level(True),
    "unigram always prepended": lambda: metaspace("always"),
    "unigram never prepended": lambda: metaspace("never"),
    "unigram over the whole text": lambda: metaspace("first"),
    "llama-like": llama_like,
    "word pieces": word_piece,
    "characters": characters,
}
WHOLE = {"unigram over the whole text", "llama-like"}  # trained on words, then let loose on whole texts
AROUND = {"": ("", 0), "opened": ("<s> $A", 1), "enclosed": ("[CLS] $A [SEP]", 2)}


@pytest.fixture(scope="module")
def built(corpus: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """`built(make, around)`: the path of a trained tokenizer.json."""
    folder = tmp_path_factory.mktemp("tokenizers")

    def path(name: str, around: str = "") -> Path:
        found = folder / f"{name} {around}.json"
        if not found.exists():
            if not (bare := folder / f"{name}.bare").exists():
                made, trainer = MAKES[name]()
                made.train_from_iterator(corpus, trainer)
                made.save(str(bare))
            made = Tokenizer.from_file(str(bare))
            template = AROUND[around][0]
            if template:
                pairs = [(token, made.token_to_id(token)) for token in SPECIAL if token in template]
                made.post_processor = processors.TemplateProcessing(single=template, special_tokens=pairs)
            stored = json.loads(made.to_str())
            if name in WHOLE:
                stored["pre_tokenizer"] = None
            if name == "unigram over the whole text":
                stored["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
            found.write_text(json.dumps(stored))
        return found

    return path


def request(prompt_tokens: int, ids: tuple[int, ...] = (), block: int = 16, number: int = 0) -> Request:
    return Request(number, 0.0, prompt_tokens, 1, prefix_ids=ids, prefix_block_tokens=block)


def encoded(path: Path, text: str, special: bool = True) -> list[int]:
    return list(Tokenizer.from_file(str(path)).encode(text, add_special_tokens=special).ids)


@cache
def content(path: Path, seed: int = 0) -> Text:
    made: Text = make("content", f"text:{path}", seed=seed)
    return made


@pytest.mark.parametrize(
    ("name", "around"), [*((name, "enclosed") for name in MAKES), ("byte-level", ""), ("llama-like", "opened")]
)
def test_the_tokenizer_counts_exactly_the_requested_tokens(name: str, around: str, built: Any) -> None:
    """If this failed, a server would be sent more or fewer tokens than the report says."""
    path = built(name, around)
    text = content(path)
    for number, count in enumerate((2, 3, 17, 64, 700, 5000)):
        target = request(count, (4, 5, 6), number=number)
        found = encoded(path, text.text(target))

        assert count == len(found)
        assert found == text.token_ids(target, 10_000).tolist()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(list(MAKES)),
    around=st.sampled_from(list(AROUND)),
    shared=st.integers(0, 6),
    block=st.integers(1, 40),
    lengths=st.tuples(st.integers(3, 300), st.integers(3, 300)),
    first=st.integers(0, 2**40),
)
def test_equal_prefix_ids_encode_to_equal_leading_tokens(
    name: str, around: str, shared: int, block: int, lengths: tuple[int, int], first: int, built: Any
) -> None:
    """If this failed, an HTTP server would share other blocks than the simulator and the engine."""
    path, ids = built(name, around), tuple(range(first, first + shared))
    text = content(path)
    one, two = (encoded(path, text.text(request(n, (*ids, -i), block, i))) for i, n in enumerate(lengths))
    closing = 1 if around == "enclosed" else 0
    common = max(0, min(shared * block, *(n - closing for n in lengths)))

    assert list(lengths) == [len(one), len(two)]
    assert one[:common] == two[:common]


@pytest.mark.parametrize("name", MAKES)
def test_texts_that_share_nothing_are_different(name: str, built: Any) -> None:
    """If this failed, requests without a common prefix would hit the prefix cache all the same."""
    path = built(name)
    text = content(path)
    one, two = (np.array(encoded(path, text.text(request(600, number=i)))) for i in (1, 2))

    assert np.mean(one == two) < 2 / len(text.words.words)
    assert len(text.words.words) >= FEWEST_WORDS


def test_without_special_tokens_the_bare_text_has_the_count(built: Any) -> None:
    """If this failed, a server that adds no special tokens would be a token or two short."""
    path = built("word pieces", "enclosed")
    bare = make("content", f"text:{path},special=false", seed=3)
    words = bare.text(request(40))

    assert 40 == len(encoded(path, words, special=False))
    assert 42 == len(encoded(path, words))


def test_words_that_merge_with_a_neighbour_are_not_used(built: Any, tmp_path: Path) -> None:
    """If this failed, a tokenizer with a token for 'of the' would count fewer tokens than requested."""
    letters = [chr(97 + i) for i in range(26)]
    vocabulary = {token: i for i, token in enumerate([*letters, "▁", *(f"▁{x}" for x in letters), "▁a▁b", "▁c▁c"])}
    merges = [*(("▁", x) for x in letters), ("▁a", "▁b"), ("▁c", "▁c")]
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.save(str(tmp_path / "merging.json"))
    words = set(content(tmp_path / "merging.json").words.words)

    assert "c" not in words
    assert 1 == len({"a", "b"} & words)
    assert 24 == len(words)


def test_the_facts_name_the_tokenizer(built: Any) -> None:
    """If this failed, a report could not say under which tokenizer its prompts have their length."""
    facts = content(built("word pieces", "enclosed")).facts

    assert 64 == len(str(facts["tokenizer_sha256"]))
    assert 2 == facts["special_tokens"]


def test_wrong_tokenizers_are_one_sentence(built: Any, tmp_path: Path) -> None:
    """If this failed, a typing mistake would end in a traceback of a library."""
    numbers = Tokenizer(models.WordLevel({str(i): i for i in range(100)}, unk_token="7"))
    numbers.save(str(tmp_path / "numbers.json"))

    for spec, words in {
        f"text:{tmp_path}": "cannot be read: Is a directory; give the path",
        f"text:{tmp_path}/numbers.json": "has no 16 words .* leave it out",
    }.items():
        with pytest.raises(UsageError, match=words):
            make("content", spec)
    with pytest.raises(ValueError, match="has 1 prompt tokens, but the tokenizer adds 2"):
        content(built("word pieces", "enclosed")).text(request(1))
    with pytest.raises(ValueError, match="give the tokenizer of the model"):
        content(built("word pieces")).token_ids(request(5), 20)


def test_without_the_library_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, a missing extra would end in a traceback."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match="pip install 'goodput-bench\\[tokenizers\\]'"):
        make("content", "text:tokenizer.json")
