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

from backends.client import shapes
from backends.client.body import Api
from backends.client.control import ControlClient
from backends.client.secrets import load_key
from backends.client.target import base_url, deployment, without_version
from harness.errors import BackendError, NotReady, UsageError

LISTEN_S = 2.0
"""How long a port of this machine may take to list its models."""
ANSWER_S = 30.0
"""How long a first answer of one token may take."""

_NAME = "--model NAME, or model=NAME"
PORTS = (
    8000,  # vLLM, TensorRT-LLM, NIM, bench serve
    30000,  # SGLang
    8080,  # llama.cpp, LocalAI, MLX
    11434,  # Ollama
    1234,  # LM Studio
    23333,  # LMDeploy
    3000,  # text-generation-inference
    5000,  # TabbyAPI, text-generation-webui
    5001,  # KoboldCpp
    1337,  # Jan
    2242,  # Aphrodite
    4000,  # LiteLLM
    9997,  # Xinference
)
"""The default ports in the documentation of servers, in the order in which they are taken where several answer."""


@dataclass(frozen=True, slots=True)
class Found:
    """A server that answers: its base URL, the model to request, and the API that gives text."""

    url: str
    model: str
    api: Api
    others: tuple[str, ...] = ()
    """Further addresses at which a server listed models."""


async def find(
    url: str | None, model: str | None, environ: Mapping[str, str] = os.environ, ports: Sequence[int] = PORTS
) -> Found | None:
    """The server at `url`, else at OPENAI_BASE_URL, else at the first of the usual ports of this machine that lists
    models; None where no port does.

    Raises BackendError for a named server that does not answer, and for any that refuses the key, needs more than 30 s
    for one token or generates no text; UsageError where one of several models must be named.
    """
    others: list[str] = []
    given_url = url if url is not None else environ.get("OPENAI_BASE_URL") or None
    if given_url is not None:
        server_url = base_url(given_url, {})[0]
    else:
        local_urls = [f"http://127.0.0.1:{port}/v1" for port in ports]
        listening = await asyncio.gather(*(_lists_models(address) for address in local_urls))
        answering = [address for address, answers in zip(local_urls, listening, strict=True) if answers]
        if not answering:
            return None
        server_url, *others = answering
    key = load_key(environ=environ)
    async with ControlClient(server_url, key=key, timeout_s=ANSWER_S) as control:
        chosen = (await model_of(control, model or deployment(server_url))).model
        return Found(control.url, chosen, await _api(control, chosen), tuple(others))


async def _lists_models(address: str) -> bool:
    """Whether a server with OpenAI's API is there, perhaps loading its model; without the key, which is for a server
    that was chosen.
    """
    async with ControlClient(address, timeout_s=LISTEN_S) as control:
        try:
            status, body = await control.fetch(control.at("/models"), "models")
        except BackendError:
            return False
    return status in (401, 403, 503) or (status == 200 and _entries(body) is not None)


class Chosen(NamedTuple):
    """The model to request, its entry in the server's list, and the names that the list has."""

    model: str
    entry: Mapping[str, object]
    listed: tuple[str, ...]


async def model_of(control: ControlClient, named: str | None) -> Chosen:
    """The model to request; a `named` one is believed, whatever the server's list says.

    Finds out too whether the routes of the server stand below `/v1`.

    Raises BackendError for a server that refuses the key, NotReady for one that may list a model later, UsageError
    where one of several models must be named.
    """
    status, answer = await control.fetch(control.at("/models"), "models")
    if status == 404 and (root := without_version(control.url)) is not None:
        below, control.url = control.url, root
        root_status, other = await control.fetch(control.at("/models"), "models")
        if root_status == 200 and _entries(other) is not None:
            status, answer = root_status, other
        else:
            control.url = below
    models = {str(entry["id"]): entry for entry in (_entries(answer) if status == 200 else None) or ()}
    only = next(iter(models)) if len(models) == 1 else None
    if model := named or only:
        return Chosen(model, models.get(model, models.get(only or "", {})), tuple(sorted(models)))
    if models:
        names = control.brief(", ".join(sorted(models)))
        raise UsageError(
            f"The server at {control.where} has several models; name one by {_NAME}. Known: {names.rstrip('.')}."
        )
    words = shapes.error_words(shapes.inside(answer))
    if status in (401, 403):
        raise BackendError(
            f"{control.refuses_key(status, words)} If only its list of models is closed, name one by {_NAME}."
        )
    if (later := control.not_ready(status, words)) is not None:
        raise later
    if status == 200 and _entries(answer) == []:
        raise NotReady(f"The server at {control.where} lists no model yet")
    raise UsageError(f"The server at {control.where} does not list its models (HTTP {status}); name one by {_NAME}.")


def _entries(answer: object) -> list[Mapping[str, object]] | None:
    """The models of a list, in which some servers have them bare; None for any other answer."""
    data = answer if isinstance(answer, list) else shapes.inside(answer).get("data")
    if not isinstance(data, list):
        return None
    return [entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


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
            status, answer = await control.fetch(control.at(path), "a first answer", body)
        except BackendError as error:
            if "gave no answer" not in str(error):
                raise
            raise BackendError(
                f"The server at {control.where} did not answer a request for one token within {ANSWER_S:g} s; if it "
                "was loading its model, try again, else measure it with 'bench run', which waits longer."
            ) from None
        if status == 200 and isinstance(shapes.inside(answer).get("choices"), list):
            return api
        words = shapes.error_words(shapes.inside(answer))
        if status in (401, 403):
            raise control.refuses_key(status, words)
        if (later := control.not_ready(status, words)) is not None:
            raise later
        foreign = shapes.other_api(shapes.inside(answer)) if status == 200 else None
        refused = refused or foreign or f"HTTP {status}" + (f", {control.quoted(words)}" if words else "")
    # Only to say why: a server of embeddings refuses all of these in words of its own.
    status, _ = await control.fetch(control.at("/embeddings"), "embeddings", {"model": model, "input": "one"})
    if status == 200:
        raise BackendError(
            f"'{control.brief(model)}' at {control.where} is an embedding model, which generates no tokens to time; "
            f"serve a model that generates text, or name one by {_NAME}."
        )
    raise BackendError(
        f"The server at {control.where} generates no text with the model '{control.brief(model)}' ({refused})."
    )
