"""Finds a server with OpenAI's API: at a given address, or at the ports that servers usually listen on.

Asks for its models and for one short answer, so that a server that cannot be measured is refused in one sentence before
anything is sent in numbers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from backends.client import message
from backends.client.body import Api, base_url
from backends.client.control import ControlClient
from backends.client.secrets import load_key
from harness.errors import BackendError, UsageError

LISTEN_S = 2.0
"""How long a port of this machine may take to list its models."""
ANSWER_S = 30.0
"""How long a first answer of one token may take."""


class Port(NamedTuple):
    """A port, and the servers whose documentation has it as the default."""

    number: int
    servers: str


PORTS = (
    Port(8000, "vLLM, TensorRT-LLM, NIM, bench serve"),
    Port(30000, "SGLang"),
    Port(8080, "llama.cpp, LocalAI, MLX"),
    Port(11434, "Ollama"),
    Port(1234, "LM Studio"),
    Port(23333, "LMDeploy"),
    Port(3000, "text-generation-inference"),
    Port(5000, "TabbyAPI, text-generation-webui"),
    Port(5001, "KoboldCpp"),
    Port(1337, "Jan"),
    Port(2242, "Aphrodite"),
    Port(4000, "LiteLLM"),
    Port(9997, "Xinference"),
)
"""In the order in which they are taken where several answer."""


@dataclass(frozen=True, slots=True)
class Found:
    """A server that answers: its base URL, the model to request, and the API that gives text."""

    url: str
    model: str
    api: Api
    others: tuple[str, ...] = ()
    """Further addresses at which a server listed models."""


def whole_url(text: str) -> str:
    """An address as a user types it, with the scheme and the `/v1` that it lacks: `localhost:8000` -> its base URL."""
    text = text if "://" in text else f"http://{text}"
    parts = urlsplit(text)
    return text if parts.path.rstrip("/") else parts._replace(path="/v1").geturl()


async def find(
    url: str | None, model: str | None, environ: Mapping[str, str] = os.environ, ports: Sequence[Port] = PORTS
) -> Found | None:
    """The server at `url`, else at OPENAI_BASE_URL, else at the first of the usual ports of this machine that lists
    models; None where no port does.

    Raises BackendError for a named server that does not answer, and for any that refuses the key, needs more than 30 s
    for one token or generates no text; UsageError where one of several models must be named.
    """
    others: list[str] = []
    named = url if url is not None else environ.get("OPENAI_BASE_URL") or None
    if named is not None:
        found = base_url(whole_url(named), {})[0]
    else:
        here = [f"http://127.0.0.1:{port.number}/v1" for port in ports]
        listening = await asyncio.gather(*(_lists_models(address) for address in here))
        answering = [address for address, answers in zip(here, listening, strict=True) if answers]
        if not answering:
            return None
        found, *others = answering
    key = load_key(environ=environ)
    async with ControlClient(found, key=key, timeout_s=ANSWER_S) as control:
        chosen = model or await _only_model(control)
        return Found(found, chosen, await _api(control, chosen), tuple(others))


async def _lists_models(address: str) -> bool:
    """Whether a server with OpenAI's API is there; without the key, which is for a server that was chosen."""
    async with ControlClient(address, timeout_s=LISTEN_S) as control:
        try:
            status, found = await control.get(control.at("/models"), "models")
        except BackendError:
            return False
    return status in (401, 403) or (status == 200 and isinstance(message.inside(found).get("data"), list))


async def _only_model(control: ControlClient) -> str:
    status, found = await control.get(control.at("/models"), "models")
    if status in (401, 403):
        raise _refuses_key(control, status)
    data = message.inside(found).get("data")
    entries = data if status == 200 and isinstance(data, list) else []
    names = sorted({str(entry["id"]) for entry in entries if isinstance(message.inside(entry).get("id"), str)})
    if len(names) == 1:
        return names[0]
    if names:
        known = control.shown(", ".join(names)).rstrip(".")
        raise UsageError(f"The server at {control.where} has several models; name one with --model. Known: {known}.")
    hint = f"; {control.hint}" if control.hint else ""
    raise UsageError(f"The server at {control.where} does not list its models; name one with --model{hint}.")


async def _api(control: ControlClient, model: str) -> Api:
    """The API that gives a token of text; chat where both do."""
    chat: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": "Say one word."}]}
    refused = ""
    tries: tuple[tuple[Api, str, dict[str, object]], ...] = (
        ("chat", "/chat/completions", {**chat, "max_tokens": 1}),
        ("chat", "/chat/completions", {**chat, "max_completion_tokens": 16}),
        ("completions", "/completions", {"model": model, "prompt": "Say one word.", "max_tokens": 1}),
    )
    for api, path, body in tries:
        try:
            status, answer = await control.post(control.at(path), body, "a first answer")
        except BackendError as error:
            if "gave no answer" not in str(error):
                raise
            raise BackendError(
                f"The server at {control.where} did not answer a request for one token within {ANSWER_S:g} s; if it "
                "was loading its model, try again, else measure it with 'bench run', which waits longer."
            ) from None
        if status == 200 and isinstance(message.inside(answer).get("choices"), list):
            return api
        if status in (401, 403):
            raise _refuses_key(control, status)
        if status in (429, 503, 529):
            raise BackendError(f"The server at {control.where} is not ready (HTTP {status}); try again when it is.")
        words = message.error_text(message.inside(answer)) or ""
        refused = refused or f"HTTP {status}" + (f", {control.quoted(words)}" if words else "")
    status, _ = await control.post(control.at("/embeddings"), {"model": model, "input": "one"}, "embeddings")
    if status == 200:
        raise BackendError(
            f"'{control.brief(model)}' at {control.where} is an embedding model, which generates no tokens to time; "
            "serve a model that generates text, or name one with --model."
        )
    raise BackendError(
        f"The server at {control.where} generates no text with the model '{control.brief(model)}' ({refused})."
    )


def _refuses_key(control: ControlClient, status: int) -> BackendError:
    return BackendError(f"The server at {control.where} needs a key (HTTP {status}); set OPENAI_API_KEY.")
