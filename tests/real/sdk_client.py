"""What a program that uses a client library sees: `python sdk_client.py LIBRARY URL MODEL REQUESTS STREAMS TOKENS KEY`.

Streams chats from as many threads as STREAMS and prints one JSON object: the library's version, errors, and per answer
the time to its first text, the gaps between texts, how many there were, and the tokens that the library reports.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import pairwise

PROMPT = "badu fiko " * 20
Piece = tuple[str, "int | None"]  # text, and the tokens of the answer where they are reported


def openai(url: str, model: str, tokens: int, key: str) -> Callable[[], Iterator[Piece]]:
    import openai as library

    client = library.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)

    def answer() -> Iterator[Piece]:
        chunks = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": PROMPT}], max_completion_tokens=tokens, temperature=0,
            stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        )  # fmt: skip
        for chunk in chunks:
            text = chunk.choices[0].delta.content if chunk.choices else None
            yield text or "", chunk.usage.completion_tokens if chunk.usage else None

    return answer


def litellm(url: str, model: str, tokens: int, key: str) -> Callable[[], Iterator[Piece]]:
    import litellm as library

    def answer() -> Iterator[Piece]:
        chunks = library.completion(
            model=f"openai/{model}", api_base=f"{url}/v1", api_key=key, num_retries=0, max_tokens=tokens,
            messages=[{"role": "user", "content": PROMPT}], temperature=0, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        )  # fmt: skip
        for chunk in chunks:
            usage = getattr(chunk, "usage", None)
            text = chunk.choices[0].delta.content if chunk.choices else None
            yield text or "", usage.completion_tokens if usage else None

    return answer


def langchain(url: str, model: str, tokens: int, key: str) -> Callable[[], Iterator[Piece]]:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(
        base_url=f"{url}/v1", model=model, api_key=key, max_retries=0, max_completion_tokens=tokens, temperature=0,
        stream_usage=True, extra_body={"ignore_eos": True},
    )  # fmt: skip

    def answer() -> Iterator[Piece]:
        for chunk in chat.stream(PROMPT):
            usage = chunk.usage_metadata
            yield str(chunk.content or ""), usage["output_tokens"] if usage else None

    return answer


def timed(answer: Callable[[], Iterator[Piece]]) -> dict[str, object]:
    """One answer, by the clock of the program."""
    start_s, at_s, tokens, text = time.monotonic(), [], None, []
    try:
        for piece, usage in answer():
            if piece:
                at_s.append(time.monotonic())
                text.append(piece)
            tokens = usage if usage is not None else tokens
    except Exception as error:  # noqa: BLE001  # whatever a library raises is what its user sees
        return {"error": f"{type(error).__name__}: {error}"}
    if not at_s:
        return {"error": "no text came"}
    gaps_s = [b - a for a, b in pairwise(at_s)]
    return {"ttft_s": at_s[0] - start_s, "gaps_s": gaps_s, "texts": len(at_s), "tokens": tokens, "text": "".join(text)}


LIBRARIES = {
    "openai": (openai, "openai"),
    "litellm": (litellm, "litellm"),
    "langchain": (langchain, "langchain-openai"),
}


def main(library: str, url: str, model: str, requests: int, streams: int, tokens: int, key: str) -> None:
    make, package = LIBRARIES[library]
    answer = make(url, model, tokens, key)
    with ThreadPoolExecutor(streams) as threads:
        answers = list(threads.map(lambda _: timed(answer), range(requests)))
    errors = [a["error"] for a in answers if "error" in a]
    good = [a for a in answers if "error" not in a]
    print(json.dumps({"version": version(package), "errors": errors, "answers": good}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7]), sys.argv[7])
