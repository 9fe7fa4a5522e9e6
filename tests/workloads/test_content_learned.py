"""Text for an unknown tokenizer, against servers that count in their own ways."""

import hashlib
import math
from collections.abc import Callable

import numpy as np
import pytest

from harness.api import Request
from workloads.content._words import WORDS
from workloads.content.text import Text

Server = Callable[[str], int]


def per_word(text: str) -> int:
    """One to four tokens a word, and a chat template."""
    return 23 + sum(1 + hashlib.sha256(word.encode()).digest()[0] % 4 for word in text.split())


def per_characters(text: str) -> int:
    """Four characters a token, rounded up."""
    return math.ceil(len(text) / 4)


def trained(text: str) -> int:
    """A small byte-level tokenizer that was trained on something else, and adds a begin-of-text token."""
    return 1 + len(_trained().encode(text).ids)


def _trained(made: list[object] = []) -> object:  # noqa: B006  # trained once
    if not made:
        tokenizers = pytest.importorskip("tokenizers")
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        corpus = [" ".join(WORDS[i : i + 9]) for i in range(0, 40, 3)]
        tokenizer.train_from_iterator(corpus, tokenizers.trainers.BpeTrainer(vocab_size=150, show_progress=False))
        made.append(tokenizer)
    return made[0]


def requests(count: int, seed: int = 0) -> list[Request]:
    """Prompts of 30 to 2,000 tokens, half of them with a shared prefix."""
    lengths = np.exp(np.random.default_rng(seed).uniform(math.log(30), math.log(2000), count)).astype(int)
    return [
        Request(i, 0.0, int(n), 1, prefix_ids=(3, 4) * (i % 2), prefix_block_tokens=16) for i, n in enumerate(lengths)
    ]


def sent(content: Text, server: Server, requested: list[Request], outstanding: int = 1) -> np.ndarray:
    """(N,) relative error of each count, when answers come `outstanding` requests late."""
    counts: list[int] = []
    texts: list[str] = []
    for i, request in enumerate(requested):
        texts.append(content.text(request))
        counts.append(server(texts[-1]))
        if (late := i - outstanding + 1) >= 0:
            content.observe(texts[late], counts[late])
    return np.array(counts) / [r.prompt_tokens for r in requested] - 1


@pytest.mark.parametrize("outstanding", [1, 50])
@pytest.mark.parametrize("server", [per_word, per_characters, trained])
def test_after_some_answers_a_hundred_tokens_are_a_hundred_tokens(server: Server, outstanding: int) -> None:
    """If this failed, the load on a server of unknown tokenizer would not be the one that the report states."""
    content = Text()
    errors = sent(content, server, requests(400), outstanding)

    assert abs(errors[200:].mean()) < 0.02
    assert np.abs(errors[200:]).mean() < 0.08  # words of few and of many tokens come by chance
    assert np.abs(errors[0]) > 0.1  # nothing was known before
    assert 401 - outstanding == content.facts["observed"]


def test_prefix_words_do_not_move_while_lengths_are_learned() -> None:
    """If this failed, requests with one prefix would stop sharing it as soon as the first answer came."""
    content = Text()
    one, two = (Request(i, 0.0, 500, 1, prefix_ids=(3, 4), prefix_block_tokens=16) for i in (1000, 1001))
    before = content.text(one)
    sent(content, per_word, requests(100))
    after = content.text(two)
    shared = 32  # words: two blocks of 16 tokens at one token a word

    assert before.split()[:shared] == after.split()[:shared]
    assert before.split()[shared : shared + 20] != after.split()[shared : shared + 20]


def test_busting_makes_every_beginning_its_own() -> None:
    """If this failed, a run against a warm prefix cache would be faster than the system is."""
    requested = [Request(i, 0.0, 200, 1, prefix_ids=(1, 2, 3, 4)) for i in range(300)]
    starts = {tuple(Text(bust=True).text(r).split()[:16]) for r in requested}

    assert 300 == len(starts)


def test_the_counts_of_one_content_teach_another() -> None:
    """If this failed, each run of a sweep would have to ask the server anew, or send prompts of other lengths."""
    first, second = Text(seed=1), Text(seed=2)
    for request in requests(20):
        text = first.text(request)
        for content in (first, second):
            content.observe(text, per_word(text))

    assert first.facts == second.facts
    assert 20 == second.facts["observed"]


def test_words_are_plain_and_different() -> None:
    """If this failed, a word would count for two."""
    assert len(set(WORDS)) == len(WORDS)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)
