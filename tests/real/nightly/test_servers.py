"""The heavy servers against our engine on the same weights, and what their streams look like."""

import pytest

pytestmark = pytest.mark.timeout(900)  # vLLM takes minutes to start on a busy machine

KINDS = pytest.mark.parametrize("kind", ["ascii", "bytes"])


def text_of(events) -> str:
    """The text of a streamed chat."""
    pieces = [e["choices"][0]["delta"].get("content") for _, e in events if e != "[DONE]" and e.get("choices")]
    return "".join(p for p in pieces if p)


@KINDS
@pytest.mark.parametrize("seed", [0, 1])
def test_transformers_gives_the_text_of_our_engine(transformers_serve, tiny, tokenizer, greedy, kit, kind, seed):
    """If this failed, our engine would compute something else than the reference implementation of the model."""
    prompt, words = kit.words(20, seed), tokenizer(kind)
    ids = words.encode(prompt).ids
    body = {"model": str(tiny(kind)), "prompt": prompt, "max_tokens": 40, "temperature": 0}
    answer = kit.ask(f"{transformers_serve}/v1/completions", body)
    ours = greedy(kind, ids, 40)

    assert words.decode(ours) == answer["choices"][0]["text"]
    assert (len(ids), len(ours)) == (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"])
    assert "length" == answer["choices"][0]["finish_reason"]


@KINDS
@pytest.mark.parametrize("seed", [0, 1])
def test_vllm_gives_the_text_of_our_engine(vllm, tokenizer, greedy, kit, kind, seed):
    """If this failed, our engine would compute something else than the server most people run."""
    prompt, words = kit.words(20, seed), tokenizer(kind)
    ids = words.encode(prompt).ids
    body = {"model": f"tiny-{kind}", "max_tokens": 40, "temperature": 0}
    answer = kit.ask(f"{vllm(kind)}/v1/completions", body | {"prompt": prompt})
    by_ids = kit.ask(f"{vllm(kind)}/v1/completions", body | {"prompt": ids})
    ours = greedy(kind, ids, 40)

    assert words.decode(ours) == answer["choices"][0]["text"] == by_ids["choices"][0]["text"]
    assert (len(ids), len(ours)) == (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"])
    assert "length" == answer["choices"][0]["finish_reason"]


def test_vllm_counts_the_end_of_the_sequence(vllm, tokenizer, greedy, kit):
    """If this failed, an answer that ends by itself would be one token longer there than in our records."""
    prompt, words = kit.words(20, 10), tokenizer("bytes")
    body = {"model": "tiny-bytes", "prompt": prompt, "max_tokens": 120, "temperature": 0}
    answer = kit.ask(f"{vllm('bytes')}/v1/completions", body)
    ours = greedy("bytes", words.encode(prompt).ids, 120)

    assert 0 == ours[-1]
    assert len(ours) == answer["usage"]["completion_tokens"]
    assert words.decode(ours) == answer["choices"][0]["text"]
    assert "stop" == answer["choices"][0]["finish_reason"]


def test_transformers_streams_without_done_and_with_unrequested_usage(transformers_serve, tiny, kit):
    """If this failed, the rules for streams without [DONE] would fit no real server."""
    body = {"model": str(tiny("ascii")), "messages": [{"role": "user", "content": "bade fi"}], "max_tokens": 12}
    seen = [event for _, event in kit.events(f"{transformers_serve}/v1/chat/completions", body | {"stream": True})]

    assert "[DONE]" not in seen
    assert 12 == seen[-1]["usage"]["completion_tokens"]
    assert "length" == seen[-1]["choices"][0]["finish_reason"]
    assert "role" in seen[0]["choices"][0]["delta"]
    assert "content" not in seen[0]["choices"][0]["delta"]


def test_vllm_tells_usage_with_every_chunk(vllm, kit):
    """If this failed, exact tokens per event could not be had from the server most people run."""
    body = {
        "model": "tiny-bytes", "messages": [{"role": "user", "content": "bade fi"}], "max_completion_tokens": 40,
        "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip
    seen = [event for _, event in kit.events(f"{vllm('bytes')}/v1/chat/completions", body)]
    counts = [e["usage"]["completion_tokens"] for e in seen if e != "[DONE]"]

    assert "[DONE]" == seen[-1]
    assert 40 == counts[-1]
    assert sorted(counts) == counts


def test_litellm_streams_what_is_behind_it(litellm_proxy, llama_cpp, kit):
    """If this failed, a proxy in between would change the text or the counts of a benchmark."""
    body = {
        "model": "tiny-bytes", "messages": [{"role": "user", "content": "bade fi"}], "max_tokens": 24,
        "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    behind = kit.events(f"{llama_cpp('bytes')}/v1/chat/completions", body)
    address, key = litellm_proxy
    before = kit.events(f"{address}/v1/chat/completions", body, key)
    usages = [e["usage"] for _, e in before if e != "[DONE]" and e.get("usage")]

    assert text_of(behind) == text_of(before)
    assert 24 == usages[-1]["completion_tokens"]
