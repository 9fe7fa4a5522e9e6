"""llama.cpp's server against our engine, on the same weights."""

import pytest

KINDS = pytest.mark.parametrize("kind", ["ascii", "bytes"])


@KINDS
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_text_equals_our_engine(llama_cpp, tokenizer, greedy, kit, kind, seed):
    """If this failed, our engine would compute something else than the model it was given."""
    prompt, words = kit.words(20, seed), tokenizer(kind)
    ids = words.encode(prompt).ids
    body = {"model": f"tiny-{kind}", "prompt": prompt, "max_tokens": 120, "temperature": 0}
    answer = kit.ask(f"{llama_cpp(kind)}/v1/completions", body)
    ours = greedy(kind, ids, 120)

    assert words.decode(ours) == answer["choices"][0]["text"]
    assert len(ids) == answer["usage"]["prompt_tokens"]
    assert len(ours) == answer["usage"]["completion_tokens"]
    assert "length" == answer["choices"][0]["finish_reason"]


@KINDS
def test_token_ids_are_the_same_prompt_as_their_text(llama_cpp, tokenizer, kit, kind):
    """Otherwise prompts sent as ids would have another length or content than we planned."""
    prompt = kit.words(20, 7)
    body = {"model": f"tiny-{kind}", "max_tokens": 30, "temperature": 0}
    by_text = kit.ask(f"{llama_cpp(kind)}/v1/completions", body | {"prompt": prompt})
    by_ids = kit.ask(f"{llama_cpp(kind)}/v1/completions", body | {"prompt": tokenizer(kind).encode(prompt).ids})

    assert by_text["choices"][0]["text"] == by_ids["choices"][0]["text"]
    assert by_text["usage"]["prompt_tokens"] == by_ids["usage"]["prompt_tokens"]


@KINDS
def test_chat_template_gives_the_prompt_that_we_render(llama_cpp, tokenizer, greedy, kit, kind):
    """If this failed, a chat would have other tokens there than in front of our engine."""
    texts, words = kit.words(12, 5), tokenizer(kind)
    ids = words.encode(f"<|user|>{texts}<|end|><|assistant|>").ids
    body = {"model": "x", "messages": [{"role": "user", "content": texts}], "max_tokens": 60, "temperature": 0}
    answer = kit.ask(f"{llama_cpp(kind)}/v1/chat/completions", body)

    assert words.decode(greedy(kind, ids, 60)) == answer["choices"][0]["message"]["content"]
    assert len(ids) == answer["usage"]["prompt_tokens"]


def test_the_end_of_the_sequence_is_a_token_of_usage(llama_cpp, tokenizer, greedy, kit):
    """If this failed, answers that end by themselves would be counted one token apart."""
    prompt, words = kit.words(20, 10), tokenizer("bytes")
    ids = words.encode(prompt).ids
    body = {"model": "tiny-bytes", "prompt": prompt, "max_tokens": 120, "temperature": 0}
    answer = kit.ask(f"{llama_cpp('bytes')}/v1/completions", body)
    ours = greedy("bytes", ids, 120)

    assert 0 == ours[-1]
    assert len(ours) == answer["usage"]["completion_tokens"]
    assert words.decode(ours) == answer["choices"][0]["text"]
    assert "stop" == answer["choices"][0]["finish_reason"]


def test_ignore_eos_goes_on_with_the_next_best_token(llama_cpp, tokenizer, greedy, kit):
    """If this failed, an exact number of output tokens could not be had from this server."""
    prompt, words = kit.words(20, 10), tokenizer("bytes")
    body = {"model": "tiny-bytes", "prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    answer = kit.ask(f"{llama_cpp('bytes')}/v1/completions", body)
    ours = greedy("bytes", words.encode(prompt).ids, 60, ignore_eos=True)

    assert 60 == answer["usage"]["completion_tokens"]
    assert words.decode(ours) == answer["choices"][0]["text"]
