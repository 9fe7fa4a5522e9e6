"""Text to tokens and back: nothing is lost, and text that comes in pieces is the text that comes whole."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from backends.server.tokenizer import Builtin, of_folder, read_template, word
from harness.errors import UsageError

TEXTS = ["the quick brown fox über Straßen 你好 🙂 and again the quick fox", "zwölf Boxkämpfer jagen Viktor", "..."]
CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_level() -> tokenizers.Tokenizer:
    """A byte-level BPE as in Llama 3 and Qwen."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|end|>", "<|user|>", "<|assistant|>"],
    )  # fmt: skip
    made.train_from_iterator(TEXTS * 3, trainer)
    made.add_tokens([AddedToken("kept aside", special=False)])
    return made


def byte_fallback() -> tokenizers.Tokenizer:
    """A vocabulary with single bytes as fallback, as in Llama 2 and Mistral."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "▁the", "▁quick", "a", "b", "the"]
    made = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(vocabulary)}, [], byte_fallback=True))
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def folder(path: Path, library: tokenizers.Tokenizer, **config: object) -> Path:
    """A model folder, as far as tokenizers go."""
    path.mkdir(parents=True, exist_ok=True)
    library.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def decode(tokenizer, token_ids):
    """The whole text at once, which that of a stream must add up to."""
    if isinstance(tokenizer, Builtin):
        return b"".join(tokenizer._bytes[i] for i in token_ids).decode("utf-8", "replace")
    return tokenizer.library.decode(list(token_ids), skip_special_tokens=True)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Tokenizers of both families, and the built-in one."""
    at = tmp_path_factory.mktemp("models")
    return {
        "byte level": of_folder(folder(at / "level", byte_level())),
        "byte fallback": of_folder(folder(at / "fallback", byte_fallback())),
        "built in": Builtin(4096),
    }


@given(st.text(max_size=60) | st.text("ab zuDE ", max_size=60))
def test_built_in_text_comes_back(text):
    """A prompt that changes on the way is another prompt."""
    for tokenizer in (Builtin(300), Builtin(4096)):
        assert text == decode(tokenizer, tokenizer.encode(text))


@pytest.fixture(scope="module")
def wide():
    """The built-in tokenizer with the vocabulary of OPT."""
    return Builtin(50_272)


@given(st.data())
@settings(max_examples=50)
def test_the_words_of_an_answer_are_counted_as_its_tokens(wide, data):
    """A client that counts tokens by /tokenize must find as many as were made."""
    for tokenizer in (Builtin(1024), wide):
        words = tokenizer.words
        ids = data.draw(st.lists(st.integers(words.start, words.stop - 1), max_size=30))

        assert ids == tokenizer.encode(decode(tokenizer, ids))


@pytest.mark.parametrize("size", [1024, 4096, 50_272, 128_256])
def test_all_tokens_are_different_and_all_ids_are_used(size):
    """Two ids of one text could not be distinguished, and an id without a text would be a hole in an answer."""
    tokenizer = Builtin(size)
    texts = [decode(tokenizer, [i]) for i in range(256, size)]

    assert size - 256 == len(set(texts))
    assert all(1 < len(text) <= 12 for text in texts)
    assert len(tokenizer.words) >= (size - 256) // 3


def test_english_has_about_as_many_tokens_as_with_real_models(wide):
    """A prompt four times too long would make the stand-in four times too slow, and overflow its context."""
    text = (
        "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want "
        "of a wife. However little known the feelings or views of such a man may be on his first entering a "
        "neighbourhood, this truth is so well fixed in the minds of the surrounding families, that he is considered "
        "as the rightful property of some one or other of their daughters."
    )

    assert 3 < len(text) / len(wide.encode(text)) < 5
    assert text == decode(wide, wide.encode(text))


def test_a_long_word_takes_no_long_time(wide):
    """One odd prompt must not stop the server for everybody."""
    for odd in (" " + "ba" * 200_000, "A" * 200_000, " " * 200_000, "z" * 200_000):
        assert odd == decode(wide, wide.encode(odd))


def test_words_are_all_different():
    """Two ids of one text could not be distinguished."""
    words = {word(i) for i in range(20_000)}

    assert 20_000 == len(words)
    assert {" "} == {w[0] for w in words}
    assert (" ba", " zu", " baba") == (word(0), word(99), word(100))


@pytest.mark.parametrize("size", [1, 60, 200, 256, 257])
def test_a_small_vocabulary_takes_any_text(size):
    """Golden models have 160 tokens; their server must not fall over a letter."""
    tokenizer = Builtin(size)
    ids = tokenizer.encode("Straße 🙂 ba ba")

    assert ids
    assert all(0 <= i < size for i in ids)
    decode(tokenizer, range(size))


@pytest.mark.parametrize("kind", ["byte level", "byte fallback", "built in"])
@given(data=st.data())
@settings(max_examples=150)
def test_pieces_of_text_are_the_whole_text(loaded, kind, data):
    """Streaming and not streaming must give the same answer, broken characters included.

    Where single bytes are a fallback the library makes a whole run of them U+FFFD for one that is broken, so there
    only sound text is the same.
    """
    tokenizer = loaded[kind]
    broken = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=25)
    ids = data.draw(st.text(max_size=12).map(tokenizer.encode) if kind == "byte fallback" else broken)
    steps = [ids[i : i + 2] for i in range(0, len(ids), 2)]
    stream = tokenizer.stream()
    pieces = [stream.add(step) for step in steps]

    assert decode(tokenizer, ids) == "".join(pieces) + stream.rest()


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
@pytest.mark.parametrize("text", ["über 你好 🙂🙂", "the quick"])
def test_half_a_character_is_kept_until_it_is_whole(loaded, kind, text):
    """Clients print what arrives: a replacement sign in it never goes away again."""
    tokenizer = loaded[kind]
    ids = tokenizer.encode(text)
    stream = tokenizer.stream()
    pieces = [stream.add([i]) for i in ids]

    assert "\ufffd" not in "".join(pieces)
    assert decode(tokenizer, ids) == "".join(pieces)
    assert "" == stream.rest()


@pytest.mark.parametrize("kind", ["byte level", "byte fallback", "built in"])
def test_half_a_surrogate_pair_is_no_internal_error(loaded, kind):
    """JSON can hold it (text cut inside an emoji), and the client would get a 500 for it."""
    tokenizer = loaded[kind]

    assert tokenizer.encode("fox?") == tokenizer.encode("fox\ud83d")
    assert tokenizer.chat([{"role": "user", "content": "fox\ud83d"}])


def test_a_long_run_of_broken_bytes_is_given_out(loaded):
    """A model of random weights makes broken bytes for ever: its text must not be kept for ever."""
    tokenizer = loaded["byte fallback"]
    stream = tokenizer.stream()
    lone = tokenizer.library.token_to_id("<0xFF>")

    assert any(stream.add([lone]) for _ in range(40))


@given(ids=st.lists(st.integers(0, 270), max_size=80))
def test_broken_bytes_end_no_answer(loaded, ids):
    """The library raises where a byte changes what it has given out, and the client would get an error."""
    stream = loaded["byte fallback"].stream()

    assert isinstance("".join(stream.add([i]) for i in ids) + stream.rest(), str)


def test_special_tokens_are_no_text(loaded):
    """`<|end|>` at the end of an answer is not a word of it."""
    tokenizer = loaded["byte level"]
    end = tokenizer.library.token_to_id("<|end|>")
    ids = [*tokenizer.encode("fox"), end, 10_000]

    assert "fox" == decode(tokenizer, ids[:-1])
    assert "fox" == tokenizer.stream().add(ids)  # and an id that no token has is nothing


def test_a_conversation_uses_the_template_of_the_folder(tmp_path):
    """In another template the model would not answer but go on with the question."""
    tokenizer = of_folder(folder(tmp_path, byte_level(), chat_template=CHATML))
    ids = tokenizer.chat([{"role": "user", "content": " quick fox "}])

    assert tokenizer.library.encode("<|user|>quick fox\n<|assistant|>").ids == ids


def test_a_template_of_its_own_file_and_one_of_several(tmp_path):
    """Folders say it in three ways."""
    listed = [{"name": "tools", "template": "no"}, {"name": "default", "template": "{{ bos_token }}yes"}]
    at = folder(tmp_path, byte_level(), chat_template=listed, bos_token={"content": "<s>"})

    assert "<s>yes" == read_template(at).render([])

    (at / "chat_template.jinja").write_text("{{ messages | tojson }}")

    assert '[{"role": "ü"}]' == read_template(at).render([{"role": "ü"}])

    (at / "chat_template.jinja").write_text(
        "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}!"
    )

    assert "ab!" == read_template(at).render([{"role": "a"}, {"role": "b"}])


def test_a_template_gets_no_tools(tmp_path):
    """Many templates ask `tools is not none`: the prompt would tell of tools that was not given."""
    source = "{% if tools is not none or documents is not none %}# Tools{% endif %}{{ messages[0].content }}"
    at = folder(tmp_path, byte_level(), chat_template=source)

    assert "hi" == read_template(at).render([{"role": "user", "content": "hi"}])


def test_without_a_template_roles_are_lines():
    """Any model can be tried."""
    assert "user: hi\nassistant:" == decode(Builtin(300), Builtin(300).chat([{"role": "user", "content": "hi"}]))


def test_a_template_that_refuses_says_why(tmp_path):
    """The client needs the sentence, not a failure of the server."""
    source = "{{ raise_exception('roles must alternate') }}"
    tokenizer = of_folder(folder(tmp_path, byte_level(), chat_template=source))

    with pytest.raises(ValueError, match="refuses these messages: roles must alternate"):
        tokenizer.chat([{"role": "user", "content": "hi"}])


def test_a_template_cannot_reach_out_of_its_box(tmp_path):
    """A template is a program that came with a download."""
    source = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    at = folder(tmp_path, byte_level(), chat_template=source)

    with pytest.raises(ValueError, match="refuses these messages"):
        read_template(at).render([])


def test_broken_files_are_one_sentence(tmp_path):
    """The user must know which file to look at."""
    at = folder(tmp_path, byte_level(), chat_template="{% if %}")

    with pytest.raises(UsageError, match="chat template of"):
        of_folder(at)

    (at / "tokenizer_config.json").write_text("{")

    with pytest.raises(UsageError, match=r"tokenizer_config.json' cannot be read: it is not JSON"):
        of_folder(at)

    (at / "tokenizer.json").write_text("{}")

    with pytest.raises(UsageError, match=r"tokenizer.json' is not a tokenizer.json of Hugging Face tokenizers"):
        of_folder(at)


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    """The built-in one steps in."""
    assert of_folder(tmp_path) is None
