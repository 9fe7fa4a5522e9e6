"""Probes a server before the run: which fields it accepts and how it answers. Refused fields are left out and noted.

A short probe asks for its models and sends one request with all fields; a field that is refused costs one more. Where
prompts are text it finds words of one token by the server's `/tokenize`, and measures what a template adds to them; of
a server without one it learns from a second request.
"""

import asyncio
import re
import ssl as ssl_module
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from backends.client import counting, shapes
from backends.client.body import (
    FIELDS,
    PATHS,
    SPELLING,
    Builder,
    Capabilities,
    Dropped,
    Lesson,
    Mode,
    RequestFormat,
    changed,
    salted_text,
)
from backends.client.control import ControlClient, ProbeResponse
from backends.client.discover import model_of
from backends.client.secrets import Redaction
from backends.client.target import without_version
from harness.api import Content, ExactWords, LearningContent, RecordedContent, Request, TextContent
from harness.errors import BackendError, NotReady, UsageError

PROMPT_TOKENS, OUTPUT_TOKENS = 32, 8
MOST_ATTEMPTS = 16
ANY_ID = 1 << 31
VOCABULARIES = (1000, 250)
"""Vocabulary sizes tried for random token ids; all current models have more tokens than the first."""

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
"""Names of a server in `owned_by` of its models or in its Server header, and the kind of server."""
LONGER = 96
"""Prompt tokens of the request that tells whether an overhead is constant."""

LONG = 1000
"""Prompt tokens of the one that does so after a short one: what is around a text and what a word is, separately."""

SEARCH_CALLS, SEARCH_S = 100, 10.0
"""Most questions to the server's tokenizer, and how long they may take; beyond them lengths are learned from counts."""

_ABOUT_IDS = "prompt|string|str_type|token|integer|list|array"
_AS_TEXT = "prompts are sent as text, so their lengths in tokens may differ from the plan"
_UNVERIFIED = "the server does not report prompt tokens: prompt lengths are unverified"
_NO_TEXT = (
    "This content has no text, and chat accepts only text; give --content text, or "
    " api=completions, which accepts token ids."
)


async def probe(
    url: str,
    ask: RequestFormat,
    content: Content,
    *,
    mode: Mode = "short",
    key: str | None = None,
    redaction: Redaction | None = None,
    ssl: ssl_module.SSLContext | bool = True,
    proxy: str | None = None,
    timeout_s: float = 600.0,
) -> Capabilities:
    """Find the request format that a server accepts, by a few requests that are not measured; off sends none.

    Raises BackendError for a server that cannot be reached or refuses a required field, UsageError for a
    content that cannot be sent to it.
    """
    if ask.prompt == "text" and not isinstance(content, TextContent):
        raise UsageError(_NO_TEXT)
    if mode == "off":
        if not ask.model:
            raise UsageError("Without a probe (probe=off) the model must be named, by model=NAME.")
        return Capabilities(ask=ask)
    async with ControlClient(
        url, key=key, redaction=redaction, ssl=ssl, proxy=proxy, timeout_s=timeout_s, headers=ask.headers
    ) as control:
        model, entry, listed = await model_of(control, ask.model)
        prober = _Prober(control, replace(ask, model=model, overhead_tokens=0), content, key, listed)
        # sizes to try for token ids, the likeliest first: the user's own, or the server's and what every model has
        reported = shapes.whole(shapes.inside(entry.get("meta")).get("n_vocab"))
        sizes = [reported, *VOCABULARIES] if ask.vocab_size is None else [ask.vocab_size]
        response = await prober.settle([size for size in sizes if size])
        prober.look(response, entry)
        await prober.correct(prober.request, response.prompt_tokens)
        if control.pauses_s:
            waited_s = sum(control.pauses_s)
            prober.warnings.append(f"the server limits requests: the probe waited {waited_s:.3g} s for it")
        return prober.capabilities(response, entry, at_root=control.url != url.rstrip("/"))


@dataclass(slots=True)
class _Prober:
    """Repeats one small request until the server accepts it."""

    control: ControlClient
    ask: RequestFormat
    content: Content
    key: str | None
    listed: Sequence[str]
    dropped: list[Dropped] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    lessons: list[Lesson] = field(default_factory=list)
    words: ExactWords | None = None
    overhead_tokens: int | None = None
    turn_tokens: int | None = None
    max_model_len: int | None = None
    attempts: int = 0
    bare: bool = False
    """Whether a short probe has left out all fields that a plain server may not know."""

    @property
    def request(self) -> Request:
        """The request of the last attempt."""
        return Request(-self.attempts, 0.0, PROMPT_TOKENS, OUTPUT_TOKENS)

    async def settle(self, vocabularies: list[int]) -> ProbeResponse:
        """The first good answer. `self.ask` is then a format that the server accepts."""
        if self.ask.prompt == "ids" and not self._fits(vocabularies[0]):  # a content whose ids are those of a tokenizer
            vocabularies = [ANY_ID]
        self.ask = replace(self.ask, vocab_size=vocabularies[0])
        for _ in range(MOST_ATTEMPTS):
            response = await self._try()
            if response.status in (404, 405) and (root := without_version(self.control.url)) is not None:
                response = await self._try_at(root) or response
            if response.status in (400, 404, 405, 415, 422, 500, 501) and self._give_in(response, vocabularies):
                continue
            if response.status != 200:
                raise self._refused(response)
            if (fault := response.stream.fault) is not None and fault == response.stream.other_api:
                raise BackendError(f"{self.control.where}: {fault}.")
            if fault is not None:
                raise BackendError(f"{self._sent()} got an error in place of tokens: {self.control.quoted(fault)}.")
            if self._misread(response):
                continue
            return response
        raise self._refused(response)

    async def _try(self) -> ProbeResponse:
        self.attempts += 1
        builder, path = Builder(self.ask, self.content, self.key), PATHS[self.ask.api]
        try:
            return await self.control.ask(
                builder, self.request, path, "fields" if self.attempts == 1 else "fewer fields"
            )
        except ValueError as error:
            raise UsageError(str(error)) from None

    async def _try_at(self, url: str) -> ProbeResponse | None:
        """The answer at another base URL, which is then that of the server; None where the route is missing too."""
        old_url, self.control.url = self.control.url, url
        response = await self._try()
        if response.status not in (404, 405):
            return response
        self.control.url = old_url
        return None

    def _fits(self, vocab_size: int) -> bool:
        try:
            self.content.token_ids(Request(-1, 0.0, PROMPT_TOKENS, OUTPUT_TOKENS), vocab_size)
        except ValueError:
            return False
        return True

    def _give_in(self, response: ProbeResponse, vocabularies: list[int]) -> bool:
        """Leave out the refused field, or the next optional one; False when none is left."""
        words = response.words
        if self.ask.prompt == "ids" and re.search("vocab|out of range", words) and len(vocabularies) > 1:
            vocabularies.pop(0)
            self.ask = replace(self.ask, vocab_size=vocabularies[0])
            return True
        if response.status not in (400, 422, 500):
            return False
        sent = [name for name, optional in FIELDS.items() if optional.is_sent(self.ask)]
        refused = [name for name in sent if re.search(rf"\b{SPELLING.get(name, name)}\b", words)]
        if "continuous_usage_stats" in sent and "include_usage" in refused and "include_usage" not in words:
            refused = ["continuous_usage_stats"]  # the error names stream_options: perhaps only this part of it
        about_ids = self.ask.prompt == "ids" and re.search(_ABOUT_IDS, words)
        if not refused and about_ids and isinstance(self.content, TextContent) and self._to_text():
            return True
        if not sent and self.ask.prompt == "ids":
            return self._to_text()
        if not refused:
            return self._strip(response)
        for name in refused:
            self._drop(name)
        return True

    def _strip(self, response: ProbeResponse) -> bool:
        """Leave out all extensions at once, for a server that does not name the one it refuses; False after that."""
        # A server that fails without naming a field would fail without the fields, too, and their loss would be blamed.
        if response.status == 500:
            return False
        if self.bare:
            return self.ask.prompt == "ids" and self._to_text()
        self.bare = True
        extensions = [optional for optional in FIELDS.values() if optional.extension]
        gone = [optional.name for optional in extensions if optional.is_sent(self.ask)]
        self.dropped += [Dropped(name, FIELDS[name].cost) for name in gone]
        before = self.ask
        for optional in (*extensions, FIELDS["max_completion_tokens"]):
            self.ask = optional.without(self.ask)
        if gone:
            self.warnings.append(
                f"the server refuses the request (status {response.status}) and does not name a field, so "
                f"{', '.join(gone)} are not sent"
            )
        return self.ask != before

    def _drop(self, name: str) -> None:
        optional = FIELDS[name]
        if not optional.is_sent(self.ask):
            return
        self.ask = optional.without(self.ask)
        if optional.cost:
            self.dropped.append(Dropped(name, optional.cost))
        if optional.instead and not self.ask.ignore_eos:
            self.ask = changed(self.ask, optional.instead, True)

    def _without_ids(self) -> bool:
        """The server does not return what follow-ups are to repeat as ids; whether prompts are text from now on."""
        has_text = isinstance(self.content, TextContent)
        instead = "prompts are sent as text" if has_text else "follow-ups do not repeat them"
        self.dropped = [dropped for dropped in self.dropped if dropped.field != "return_token_ids"]
        self.warnings.append(f"the server does not return the token ids of its answers: {instead}")
        self.ask = replace(self.ask, token_ids=False, prompt="text" if has_text else "ids")
        return has_text

    def _to_text(self) -> bool:
        if not isinstance(self.content, TextContent):
            raise UsageError("The server does not accept token ids, and this content has no text; give --content text.")
        self.dropped.append(Dropped("token ids", _AS_TEXT))
        self.ask = replace(self.ask, prompt="text", token_ids=False)
        return True

    def _misread(self, response: ProbeResponse) -> bool:
        """Whether the server silently misread the request; the next attempt then uses another form."""
        counted = response.prompt_tokens
        if self.ask.prompt == "ids" and counted is not None and counted > PROMPT_TOKENS + 16:
            return self._to_text()  # it read the list as text
        asks_ids = self.ask.token_ids or "return_token_ids" in dict(self.dropped)
        if self.ask.prompt == "ids" and asks_ids and not response.stream.ids and self._without_ids():
            return True
        produced = max(response.tokens or 0, 0 if response.tokens else response.events)
        if produced > OUTPUT_TOKENS and self.ask.length == "max_completion_tokens":
            self.ask = replace(self.ask, length_field="max_tokens")
            return True
        short = response.tokens is not None and response.tokens < OUTPUT_TOKENS
        if short and self.ask.ignore_eos and not self.ask.min_tokens and "min_tokens" not in dict(self.dropped):
            self.ask = replace(self.ask, min_tokens=True)
            return True
        if short and self.ask.ignore_eos and not self.ask.generation_config:
            self.warnings.append(
                f"the server ended the probe after {response.tokens} of {OUTPUT_TOKENS} tokens: "
                "answers may be shorter than requested"
            )
        return False

    def _refused(self, response: ProbeResponse) -> BackendError:
        reason = f": {self.control.quoted(response.words)}" if response.words else ""
        if response.status == 0:
            return BackendError(f"{self._sent()} broke off{reason}.")
        if response.status in (401, 403):
            return self.control.refuses_key(response.status, response.words)
        if (later := self.control.not_ready(response.status, response.words)) is not None:
            return later
        if response.status == 404 and "model" in response.words.lower():
            names = f", only {self.control.brief(', '.join(self.listed))}" if self.listed else ""
            model = self.control.brief(self.ask.model)
            return NotReady(f"The server at {self.control.where} has no model '{model}'{names} (HTTP 404{reason})")
        if (location := response.headers.get("Location")) is not None:
            reason += f"; it redirects to {self.control.quoted(location)}, so give that address"
        return BackendError(f"{self._sent()} got status {response.status}{reason}.")

    def _sent(self) -> str:
        """The beginning of a sentence on what became of the last attempt."""
        body = Builder(self.ask, self.content, self.key).fields(self.request)
        plain = ("model", "messages", "prompt", "stream")
        names = ", ".join(self.control.shown(name) for name in body if name not in plain)
        model = self.control.brief(self.ask.model)
        return f"{self.control.where} answers, but the request with {names} (model '{model}')"

    def look(self, response: ProbeResponse, entry: Mapping[str, object]) -> None:
        """Check the answer, and learn the context of the model from its entry in the list."""
        if self.ask.stream and not response.streamed:
            raise BackendError("The server does not stream: it answers with one JSON object; use stream=false.")
        if not response.events:
            self.warnings.append("the answer to the probe has no text, so the first token cannot be timed")
        if response.stream.finish_reason is None:
            self.warnings.append("the answer to the probe has no finish_reason: such answers count as truncated")
        in_meta = shapes.inside(entry.get("meta")).get("n_ctx")
        self.max_model_len = shapes.whole(entry.get("max_model_len")) or shapes.whole(in_meta)

    def capabilities(self, response: ProbeResponse, entry: Mapping[str, object], *, at_root: bool) -> Capabilities:
        """What the answer and the requests after it tell."""
        server = response.headers.get("Server")
        names = " ".join(name.lower() for name in (entry.get("owned_by"), server) if isinstance(name, str))
        kind = next((kind for mark, kind in KINDS.items() if mark in names), None)
        harmless = {} if response.tokens is None else {"include_usage": "it counts tokens all the same"}  # Groq
        dropped = tuple(Dropped(name, harmless.get(name) or self._cost(name, cost)) for name, cost in self.dropped)
        return Capabilities(
            ask=self.ask,
            requests=tuple(self.control.sent),
            lessons=tuple(self.lessons),
            words=self.words,
            dropped=dropped,
            overhead_tokens=self.overhead_tokens,
            turn_tokens=self.turn_tokens,
            at_root=at_root,
            max_model_len=self.max_model_len,
            server=None if server is None else self.control.brief(server),
            kind=kind or ("transformers" if self.ask.generation_config else None),
            warnings=(*(f"the server refuses {name}: {cost}" for name, cost in dropped), *self.warnings),
        )

    def _cost(self, name: str, cost: str) -> str:
        """The effect of leaving a field out, given the final format."""
        instead = "min_tokens" if self.ask.min_tokens else "generation_config" if self.ask.generation_config else None
        if name in ("ignore_eos", "min_tokens") and instead is not None:
            return f"{instead} asks for the length of answers instead"
        return cost

    async def correct(self, request: Request, counted: int | None) -> None:
        """Make prompts of words of one token each, or calibrate the content by the server's counts, and note what it
        adds; warn where neither works.

        The server `counted` so many tokens of the prompt of this request.
        """
        if counted is None:
            self.warnings.append(_UNVERIFIED)
        elif isinstance(self.content, RecordedContent):
            return
        elif self.ask.prompt == "text" and isinstance(self.content, LearningContent) and self.content.words is None:
            lesson = Lesson(salted_text(self.content, request, self.ask), counted)
            if not await self._exact(self.content):
                await self._hint(self.content, lesson)
        else:
            await self._overhead(request.prompt_tokens, counted)

    async def _exact(self, content: LearningContent) -> bool:
        """Whether the content has words of one token each by the server's tokenizer, and its counts agree."""
        begun_s, (words, calls) = time.monotonic(), await self._search(content)
        content.use(words)
        longest = LONG if self.max_model_len is None else min(LONG, self.max_model_len // 2)
        short, long = [await self._count(n) if words else None for n in (PROMPT_TOKENS, longest)]
        if short is None or long is None or long - short != longest - PROMPT_TOKENS:
            content.use(None)
            self.warnings.append("lengths: learned from what the server counts; their error per request is reported")
            return False
        self.words, self.overhead_tokens = words, short - PROMPT_TOKENS
        self.ask = replace(self.ask, overhead_tokens=self.overhead_tokens)
        self.turn_tokens = await self._turn(content) if self.ask.api == "chat" else None
        self.warnings.append(
            f"lengths: exact by the server's /tokenize ({calls} calls, {time.monotonic() - begun_s:.2g} s); tokens "
            f"that the server adds to each prompt (template), taken off: {self.overhead_tokens}"
        )
        return True

    async def _search(self, content: LearningContent) -> tuple[ExactWords | None, int]:
        """Words of one token each, and how many texts the server's tokenizer got; None without any."""
        calls, questions = 0, content.search()
        with suppress(BackendError, TimeoutError):
            async with asyncio.timeout(SEARCH_S):
                ask, text = await counting.tokenizer(self.control, self.ask.model), next(questions)
                while ask is not None and calls < SEARCH_CALLS:
                    calls += 1
                    tokens = counting.token_ids(await ask(text, "tokens of words")) or ()
                    try:
                        text = questions.send(tokens)
                    except StopIteration as end:
                        return end.value, calls
        return None, calls

    async def _turn(self, content: LearningContent) -> int | None:
        """What the server adds for an answer and the message behind it; None where it is not always the same."""
        request = Request(-2000, 0.0, PROMPT_TOKENS, 1)
        text = content.text(request, (0,))
        fields = Builder(replace(self.ask, stream=False), content, self.key).fields(request)
        counts = []
        for answers in (1, 2):
            roles = ("user", *("assistant", "user") * answers)
            body = {**fields, "messages": [{"role": role, "content": text} for role in roles]}
            _, answer = await self.control.fetch(self.control.at(PATHS["chat"]), "prompt lengths", body)
            usage = shapes.inside(shapes.inside(answer).get("usage"))
            counts.append((shapes.whole(usage.get("prompt_tokens")) or 0) - len(roles) * PROMPT_TOKENS)
        first, second = counts[0] - (self.overhead_tokens or 0), counts[1] - counts[0]
        return first if first == second else None

    async def _overhead(self, planned: int, counted: int) -> None:
        """Note what the server adds to every prompt, where it is the same for a longer one."""
        overhead = counted - planned
        # One count does not tell a template, which every prompt gets, from words that are more than a token each.
        longer = await self._count(LONGER) if overhead else None
        same = longer is None or longer - LONGER == overhead
        if not same:
            counts = f"{counted} for {planned}, {longer} for {LONGER}"
            overhead = 0
            self.warnings.append(
                f"the server counts other prompt lengths than planned ({counts}); give the tokenizer of its model"
            )
        self.ask = replace(self.ask, overhead_tokens=overhead)
        self.overhead_tokens = overhead if same else None
        if overhead > 0:
            note = f"{overhead} tokens are added to every prompt (template)"
            self.warnings.append(f"{note}; the planned text is that much shorter")

    async def _hint(self, content: LearningContent, lesson: Lesson) -> None:
        """Calibrate by the count that is known and that of one long prompt; what error remains is seen in the run.

        One count alone does not tell what is around a text from what a word is: of it nothing is learned.
        """
        longest, warned = LONG, len(self.warnings)
        if self.max_model_len is not None:  # a text of this language may have several times the tokens
            longest = min(LONG, int(self.max_model_len / 2 * min(1.0, PROMPT_TOKENS / lesson.counted)))
        text = salted_text(content, _of_length(longest), self.ask)
        if (counted := await self._count(longest)) is not None:
            self.lessons = [Lesson(text, counted), lesson]
            for learned in self.lessons:
                content.observe(*learned)
        elif len(self.warnings) == warned:
            self.warnings.append(_UNVERIFIED)

    async def _count(self, planned: int) -> int | None:
        """Return the server's count of another prompt, if that fits its context; add a warning where that fails."""
        if self.max_model_len is not None and 2 * planned > self.max_model_len:
            return None
        builder = Builder(self.ask, self.content, self.key)
        response = await self.control.ask(builder, _of_length(planned), PATHS[self.ask.api], "prompt lengths")
        if response.status != 200:
            how = f"got status {response.status}" if response.status else "broke off"
            note = f"{self.control.where} answers, but the request for the length of {planned} prompt tokens {how}"
            self.warnings.append(f"{note}: {self.control.quoted(response.words)}; prompt lengths may be inexact")
            return None
        return response.prompt_tokens


def _of_length(prompt_tokens: int) -> Request:
    """A request that is not of the run."""
    return Request(-1000, 0.0, prompt_tokens, 1)
