"""Asks a server, before the run, what it takes and how it answers; what it refuses is left out and told."""

import re
import ssl as ssl_module
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from backends.client import counting, lengths, message
from backends.client.body import PATHS, SPELLING, WITHOUT, Ask, Builder
from backends.client.capabilities import COSTS, Capabilities, Dropped, TokenizeForm, UsageForm
from backends.client.secrets import Redaction
from backends.client.talk import Heard, Talk
from harness.api import Content, Request, TextContent
from harness.errors import BackendError, UsageError

PROMPT_TOKENS, OUTPUT_TOKENS = 32, 8
MOST_ATTEMPTS = 16
ANY_ID = 1 << 31
VOCABULARIES = (1000, 250)
"""Sizes of vocabulary that are tried for random token ids; every model in use has more words than the first."""

KINDS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama.cpp",
    "llama.cpp": "llama.cpp",
    "llama-cpp": "llama.cpp",
    "text-generation-inference": "tgi",
    "tensorrt": "tensorrt-llm",
    "bench": "bench",
}
"""What a server calls itself, in `owned_by` of its models or in its Server header, and the kind that it is."""


async def probe(
    url: str,
    ask: Ask,
    content: Content,
    *,
    key: str | None = None,
    redaction: Redaction | None = None,
    ssl: ssl_module.SSLContext | bool = True,
    proxy: str | None = None,
    timeout_s: float = 600.0,
) -> Capabilities:
    """Find out how requests must be put, by a few requests that are not measured.

    Raises BackendError for a server that cannot be reached or refuses what cannot be left out, UsageError for a
    content that the server cannot be sent.
    """
    if ask.prompt != "ids" and ask.api == "chat" and not isinstance(content, TextContent):
        raise UsageError(_NO_TEXT)
    async with Talk(
        url, key=key, redaction=redaction, ssl=ssl, proxy=proxy, timeout_s=timeout_s, headers=ask.headers
    ) as talk:
        models = await _models(talk)
        model, entry = _chosen(ask.model, models, talk.hint)
        prober = _Prober(talk, replace(ask, model=model), content, key)
        # sizes to try for token ids, the likeliest first: the user's own, or the server's and what every model has
        reported = message.whole(message.inside(entry.get("meta")).get("n_vocab"))
        sizes = [reported, *VOCABULARIES] if ask.vocab_size is None else [ask.vocab_size]
        heard = await prober.settle([size for size in sizes if size])
        prober.look(heard, entry)
        found = await _tokenize(talk, prober.found)
        return await lengths.correct(talk, found, content, key)


_ABOUT_IDS = "prompt|string|str_type|token|integer|list|array"

_NO_TEXT = (
    "This content has no text, and chat takes nothing else; give --content calibrated, "
    "--content text:tokenizer=PATH, or ask for api=completions, which takes token ids."
)


async def _models(talk: Talk) -> list[Mapping[str, object]] | None:
    """The entries of `/models`; None where the server does not list them."""
    status, _, found = await talk.get(talk.at("/models"))
    if status in (401, 403):
        raise BackendError(
            f"The server refuses the key (HTTP {status} from {talk.shown(talk.at('/models'))}); "
            "set OPENAI_API_KEY, or name a variable by key_env or a file by key_file."
        )
    data = found.get("data") if isinstance(found, dict) else None
    if status != 200 or not isinstance(data, list):
        return None
    return [entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _chosen(named: str, models: list[Mapping[str, object]] | None, hint: str) -> tuple[str, Mapping[str, object]]:
    """The model to ask for, and what the server says of it."""
    known = {str(entry["id"]): entry for entry in models or ()}
    if named:
        return named, known.get(named, next(iter(known.values())) if len(known) == 1 else {})
    if len(known) == 1:
        return next(iter(known.items()))
    if known:
        raise UsageError(f"The server has several models; name one by model=NAME. Known: {', '.join(sorted(known))}.")
    if hint and models is None:
        raise UsageError(f"The server does not list its models: {hint}. If the URL is right, name one by model=NAME.")
    raise UsageError("The server does not list its models; name one by model=NAME.")


@dataclass(slots=True)
class _Prober:
    """Repeats one small request until the server takes it."""

    talk: Talk
    ask: Ask
    content: Content
    key: str | None
    dropped: list[Dropped] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
    found: Capabilities = field(default_factory=Capabilities)
    asked: int = 0

    async def settle(self, vocabularies: list[int]) -> Heard:
        """The first good answer. `self.ask` is then what the server takes."""
        self._choose_prompt(vocabularies)
        for _ in range(MOST_ATTEMPTS):
            heard = await self._try()
            if heard.status in (400, 404, 405, 415, 422, 500, 501) and self._give_in(heard, vocabularies):
                continue
            if heard.status != 200:
                raise self._refused(heard)
            if heard.stream.fault is not None or heard.words:
                raise BackendError(f"The server answers the probe with an error: {heard.words or heard.stream.fault}.")
            if self._misread(heard):
                continue
            return heard
        raise BackendError(f"The server refuses the probe in every form; its last words: {heard.words.rstrip('.')}.")

    async def _try(self) -> Heard:
        self.asked += 1
        request = Request(-self.asked, 0.0, PROMPT_TOKENS, OUTPUT_TOKENS)
        try:
            return await self.talk.ask(Builder(self.ask, self.content, self.key), request, PATHS[self.ask.api])
        except ValueError as error:
            raise UsageError(str(error)) from None

    def _choose_prompt(self, vocabularies: list[int]) -> None:
        ids = self.ask.api == "completions" and self.ask.prompt != "text"
        if self.ask.prompt == "ids" and not ids:
            raise UsageError("Chat takes messages of text, not token ids; ask for api=completions or prompt=text.")
        if not ids and not isinstance(self.content, TextContent):
            raise UsageError(_NO_TEXT)
        if ids and not self._fits(vocabularies[0]):  # a content whose ids are those of a tokenizer
            vocabularies[:] = [ANY_ID]
        self.ask = replace(self.ask, prompt="ids" if ids else "text", vocab_size=vocabularies[0])

    def _fits(self, vocab_size: int) -> bool:
        try:
            self.content.token_ids(Request(-1, 0.0, PROMPT_TOKENS, OUTPUT_TOKENS), vocab_size)
        except ValueError:
            return False
        return True

    def _give_in(self, heard: Heard, vocabularies: list[int]) -> bool:
        """Leave out what the server refuses, or the next that can be left out; False when nothing is left."""
        words = heard.words
        if self.ask.prompt == "ids" and re.search("vocab|out of range", words) and len(vocabularies) > 1:
            vocabularies.pop(0)
            self.ask = replace(self.ask, vocab_size=vocabularies[0])
            return True
        if heard.status not in (400, 422, 500):
            return False
        sent = [name for name, without in WITHOUT.items() if without(self.ask) is not None]
        named = [name for name in sent if re.search(rf"\b{SPELLING.get(name, name)}\b", words)]
        if "continuous_usage_stats" in sent and "include_usage" in named and "include_usage" not in words:
            named = ["continuous_usage_stats"]  # they name stream_options: perhaps only this part of it
        about_ids = self.ask.prompt == "ids" and re.search(_ABOUT_IDS, words)
        if not named and about_ids and isinstance(self.content, TextContent) and self._to_text():
            return True
        if not sent and self.ask.prompt == "ids":
            return self._to_text()
        for name in named or sent[:1]:
            self._drop(name)
        return bool(sent)

    def _drop(self, name: str) -> None:
        without = WITHOUT[name](self.ask)
        if without is None:
            return
        if name == "max_completion_tokens":
            self.ask = without
            return
        self.dropped.append(Dropped(name, COSTS[name]))
        if name == "ignore_eos":
            without = replace(without, min_tokens=True)
        if name == "min_tokens" and not without.ignore_eos:
            without = replace(without, generation_config=True)
        self.ask = without

    def _to_text(self) -> bool:
        if not isinstance(self.content, TextContent):
            raise UsageError(
                "The server does not take token ids, and this content has no text; give --content calibrated or "
                "--content text:tokenizer=PATH."
            )
        self.dropped.append(Dropped("token ids", COSTS["token ids"]))
        self.ask = replace(self.ask, prompt="text")
        return True

    def _misread(self, heard: Heard) -> bool:
        """Whether the server understood something else than was meant, silently; then it is put in another way."""
        counted = heard.prompt_tokens
        if self.ask.prompt == "ids" and counted is not None and counted > PROMPT_TOKENS + 16:
            return self._to_text()  # it took the list for a text
        produced = max(heard.tokens or 0, 0 if heard.tokens else heard.events)
        if produced > OUTPUT_TOKENS and self.ask.length == "max_completion_tokens":
            self.ask = replace(self.ask, length_field="max_tokens")
            return True
        short = heard.tokens is not None and heard.tokens < OUTPUT_TOKENS
        if short and self.ask.ignore_eos and not self.ask.min_tokens and "min_tokens" not in dict(self.dropped):
            self.ask = replace(self.ask, min_tokens=True)
            return True
        if short and self.ask.ignore_eos and not self.ask.generation_config:
            self.cautions.append(
                f"the server ended the probe after {heard.tokens} of {OUTPUT_TOKENS} tokens: "
                "answers may be shorter than asked"
            )
        return False

    def _refused(self, heard: Heard) -> BackendError:
        said = f": {heard.words.rstrip('.')}" if heard.words else ""
        if heard.status in (401, 403):
            hint = "set OPENAI_API_KEY, or name a variable by key_env or a file by key_file"
            return BackendError(f"The server refuses the key (HTTP {heard.status}){said}; {hint}.")
        if heard.status in (429, 503, 529):
            return BackendError(f"The server is not ready (HTTP {heard.status}){said}; start the run when it is.")
        where = self.talk.shown(self.talk.at(PATHS[self.ask.api]))
        hint = f"; {self.talk.hint}" if heard.status in (404, 405) and self.talk.hint else ""
        return BackendError(
            f"The server refuses the probe (HTTP {heard.status} from {where}, model '{self.ask.model}'){said}{hint}."
        )

    def look(self, heard: Heard, entry: Mapping[str, object]) -> None:
        """Write down what the answer shows."""
        said, meta = heard.stream, message.inside(entry.get("meta"))
        if self.ask.stream and not heard.streamed:
            raise BackendError("The server does not stream: it answers with one JSON object; ask with stream=false.")
        if not heard.events:
            self.cautions.append("the probe's answer held no text, so its first token cannot be seen")
        if said.finish_reason is None:
            self.cautions.append("the probe's answer broke off without finish_reason: such answers count as truncated")
        details = message.inside(said.usage.get("prompt_tokens_details"))
        server = heard.headers.get("Server")
        names = " ".join(name.lower() for name in (entry.get("owned_by"), server) if isinstance(name, str))
        kind = next((kind for mark, kind in KINDS.items() if mark in names), None)
        dropped = tuple(Dropped(name, self._cost(name, cost)) for name, cost in self.dropped)
        self.found = Capabilities(
            ask=self.ask,
            dropped=dropped,
            usage=_usage_form(heard),
            role_early=heard.early,
            done=said.done,
            finish_reason=said.finish_reason is not None,
            tokens_per_event=heard.tokens / heard.events if heard.tokens and heard.events else None,
            cached_tokens="cached_tokens" in details or "cache_n" in said.timings,
            max_model_len=message.whole(entry.get("max_model_len")) or message.whole(meta.get("n_ctx")),
            server=None if server is None else self.talk.shown(server),
            kind=kind or ("transformers" if self.ask.generation_config else None),
            cautions=(*(f"the server refuses {name}: {cost}" for name, cost in dropped), *self.cautions),
        )

    def _cost(self, name: str, cost: str) -> str:
        """What leaving a field out costs, when all is settled."""
        instead = "min_tokens" if self.ask.min_tokens else "generation_config" if self.ask.generation_config else None
        if name in ("ignore_eos", "min_tokens") and instead is not None:
            return f"{instead} asks for the length of answers instead"
        return cost


def _usage_form(heard: Heard) -> UsageForm | None:
    """Where the counts ride in this answer."""
    said = heard.stream
    if heard.tokens is None:
        return None
    if not heard.streamed:
        return "the answer"
    return "every chunk" if counting.is_continuous(said) else said.usage_at


async def _tokenize(talk: Talk, found: Capabilities) -> Capabilities:
    """With the address that counts tokens, its form, and the length of context that it tells, where there is one."""
    url = talk.beside("/tokenize")
    forms: dict[TokenizeForm, dict[str, object]] = {
        "prompt": {"model": found.ask.model, "prompt": "one two"},
        "content": {"content": "one two"},
    }
    for form, question in forms.items():
        status, told = await talk.post(url, question)
        if status == 200 and lengths.counted(told):
            longest = message.whole(told.get("max_model_len")) if isinstance(told, dict) else None
            return replace(found, tokenize=url, tokenize_form=form, max_model_len=found.max_model_len or longest)
        if status == 404:
            break
    return found
