"""The model that real servers are tried with."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent / "tiny_model.py"


@pytest.mark.parametrize("kind", ["ascii", "bytes"])
def test_two_processes_make_the_same_bytes(tmp_path, kind):
    """Otherwise two machines would try their servers with two models, and call the difference a bug."""

    def made(name: str, hash_seed: str) -> dict[str, str]:
        env = os.environ | {"PYTHONHASHSEED": hash_seed}
        subprocess.run([sys.executable, SCRIPT, tmp_path / name, kind], check=True, env=env)
        return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted((tmp_path / name).iterdir())}

    first = made("one", "1")

    assert {
        "config.json", "generation_config.json", "model.gguf", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    } == set(first)  # fmt: skip
    assert first == made("two", "2")


def test_ascii_tokens_are_whole_pieces_of_text(tokenizer):
    """Otherwise the simple vocabulary would break off inside characters, and hide which trouble a test found."""
    known = tokenizer("ascii")
    texts = [known.decode([i]) for i in range(5, 1024)]

    assert 1024 == known.get_vocab_size()
    assert all(text.isascii() and text for text in texts)
    assert len(set(texts)) == len(texts)


def test_bytes_tokens_hold_every_byte(tokenizer):
    """Otherwise no answer of this vocabulary would break off inside a character."""
    known = tokenizer("bytes")
    text = "ba\u00e9 \u4e16\u754c \U0001f600\x00"

    assert text == known.decode(known.encode(text).ids)
    assert "\ufffd" == known.decode(known.encode("\u00e9").ids[:1])


def test_words_are_merged_as_trained(tokenizer, kit):
    """Otherwise a prompt would be as long in tokens as in letters."""
    text = kit.words(200, seed=3)

    assert len(tokenizer("ascii").encode(text).ids) < 0.5 * len(text)
