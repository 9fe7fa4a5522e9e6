"""Keys come from the environment or a file, go to the named host only, and are never written."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.api import alike
from harness.errors import UsageError

DEFAULT_KEY_ENV = "OPENAI_API_KEY"
HIDDEN = "[hidden]"
_SECRET_NAME = re.compile(r"auth|key|token|cookie|secret|passw|pwd|credential|signature|\bsig\b", re.IGNORECASE)
_COUNTS = re.compile(r"tokens|tokeniz|(^|_)(max|min|vocab)|token_(ids?|n|s)$|keys$|key_(env|file)$", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/\s@'\"]+@")
_QUERY = re.compile(r"([?&;][^=&;\s#'\"]*)=([^&;\s#'\"]+)")
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{4,}", re.IGNORECASE)
_KEY_SHAPED = re.compile(r"\b(?:sk|pk|hf|gsk|xai|nvapi)[-_][A-Za-z0-9_-]{8,}\b")
_NAMED = re.compile(
    r"\b((?:x-)?(?:api[-_]?key|authorization|proxy-authorization|(?:access|auth|bearer|refresh)[-_]token"
    r"|secret|password|passwd|cookie|set-cookie)[\\'\"]*\s*[:=]\s*[\\'\"]*)([^\s\\'\",;&}]+(?: [^\s\\'\",;&}]+)?)",
    re.IGNORECASE,
)
_ESCAPE = re.compile(
    r"%(?:25)*(?P<percent>[0-9a-f]{2})|\\+u00(?P<json>[0-9a-f]{2})|\\+x(?P<python>[0-9a-f]{2})|&#x0*(?P<hex>[0-9a-f]{2});"
    r"|&#0*(?P<decimal>\d{2,3});|&(?P<name>amp|lt|gt|quot);|\\+(?P<plain>[^\sa-z0-9\\])",
    re.IGNORECASE,
)
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"'}
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_KEY_PLACE = re.compile(r"key[_-](env|file)['\"]?\s*[=: ]\s*['\"]?([^\s,'\"\\}]+)")
_HEADER = re.compile(
    r"(?:^|[\s\"',:])(?:-H|--header|header)['\"]?[\s=:]+(?:'(?P<quoted>[^\n']+)|\"?(?P<bare>[^\n\"]+))", re.MULTILINE
)
_BODY = re.compile(r"\{.*\}", re.DOTALL)
_BODY_IN_FILE = re.compile(r"extra[-_]body[^\n{]*(\{[^\n]*\})")
_LARGEST = 1 << 20
_SHORTEST = 4  # a shorter secret is part of many words
_END, _MIDDLE, _STEP = 8, 16, 4
"""So many characters of a secret that was cut are hidden: of its beginning or end, and of any other part (found at
every fourth place). Fewer are part of words, and do not help who reads them."""
FOREIGN_CHARACTERS = 80
"""Longest text of a server in a message: a line of a terminal."""
FOREIGN_MOST = 16 << 10
"""So much of it is looked at: what is cut before secrets are hidden may end in half a secret, and a key can be long."""


def load_key(key_env: str = DEFAULT_KEY_ENV, key_file: str | None = None, *, environ: Mapping[str, str]) -> str | None:
    """The key to send, without space around it; None when the default variable is not set.

    Raises UsageError for a file that cannot be read or is empty, and for a variable that the user names but has
    not set.
    """
    if key_file is not None:
        try:
            key = Path(key_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no text"
            raise UsageError(f"No key in key_file '{Redaction().text(key_file)}': {why}.") from None
        return _sound(key, f"key_file '{key_file}'")
    key = environ.get(key_env, "").strip()
    if not key and key_env != DEFAULT_KEY_ENV:
        variable = f" {key_env}" if _VARIABLE.fullmatch(key_env) else ""  # it may be the key itself
        raise UsageError(f"The variable{variable}, named by key_env, is not set; export it or use key_file.")
    return _sound(key, f"The variable {key_env}") if key else None


def _sound(key: str, where: str) -> str:
    if not key or not key.isprintable() or not key.isascii() or " " in key:
        raise UsageError(f"{where} holds no key: one word of printable ASCII characters is wanted.")
    return key


def is_secret_name(name: str) -> bool:
    """Whether a header, field or parameter of this name holds a secret; numbers of tokens do not."""
    return bool(_SECRET_NAME.search(name)) and not _COUNTS.search(name)


def redaction(
    key: str | None, headers: Iterable[tuple[str, str]] = (), extra: object = None, urls: Iterable[str] = ()
) -> Redaction:
    """Holds every secret of a run by its value: the key, secret headers, secret fields of the body, parts of URLs."""
    secrets = [key] if key else []
    for name, value in headers:
        if is_secret_name(name):
            secrets += [value, *value.split()[1:]]
    secrets += _secret_fields(extra)
    for url in urls:
        secrets += [part for part in re.split("[:@]", m[0].rstrip("@")) if part] if (m := _USER.search(url)) else []
        secrets += [m[2] for m in _QUERY.finditer(url) if is_secret_name(m[1])]
    return Redaction(tuple(sorted({s for s in secrets if len(s) >= _SHORTEST}, key=len, reverse=True)))


def of_command(words: Sequence[str], environ: Mapping[str, str]) -> Redaction:
    """The secrets of a command line, of the option files that it names and of the environment."""
    words = [*words, *_nested(words)]
    files = [_small_text(word) for word in words if word.endswith((".toml", ".json"))]
    text = "\n".join([*words, *files])
    keys = [environ.get(name, "") if kind == "env" else _small_text(name) for kind, name in _KEY_PLACE.findall(text)]
    secret = [value for name, value in environ.items() if is_secret_name(name) and not value.startswith(("/", "~"))]
    headers = [match["quoted"] or match["bare"] for match in _HEADER.finditer(text)]
    headers += [header.partition(",")[0] for header in headers]  # in a spec, a comma ends it
    pairs = [header.partition(mark) for header in headers for mark in ":="]
    in_text = redaction(
        None, [(name.strip(), value.strip()) for name, _, value in pairs], [*_bodies(words, files)], text.split()
    ).known
    values = {value.strip() for value in (*in_text, *keys, *secret)}
    return Redaction(tuple(sorted((value for value in values if len(value) >= _SHORTEST), key=len, reverse=True)))


def _nested(words: Iterable[str]) -> Iterator[str]:
    """The words of commands that are one word here, as in --base 'bench run ...'."""
    for word in words:
        if " " in word:
            with suppress(ValueError):
                yield from shlex.split(word)


def _bodies(words: Iterable[str], files: Iterable[str]) -> Iterator[object]:
    """The JSON objects of a command line, and those that its files give as extra-body."""
    bodies = [m[0] for word in words if (m := _BODY.search(word))]
    bodies += [body.replace('\\"', '"') for file in files for body in _BODY_IN_FILE.findall(file)]
    for body in bodies:
        with suppress(ValueError, RecursionError):
            yield json.loads(body)


def _small_text(path: str) -> str:
    """The text of a file that a person wrote; nothing of any other."""
    try:
        return Path(path).read_text(encoding="utf-8") if Path(path).stat().st_size < _LARGEST else ""
    except (OSError, ValueError):
        return ""


def _secret_fields(value: object, name: str = "") -> list[str]:
    if isinstance(value, Mapping):
        return [s for k, v in value.items() for s in _secret_fields(v, str(k))]
    if isinstance(value, (list, tuple)):
        return [s for item in value for s in _secret_fields(item, name)]
    return [value] if isinstance(value, str) and is_secret_name(name) else []


def _forms(secret: str) -> Iterator[str]:
    """A secret as it stands in a text, in base64 at each of three places of a longer one, and as hexadecimal digits."""
    yield secret
    data = secret.encode(errors="replace")
    coded = [data.hex(), data.hex().upper()]
    for before in range(3):
        text = base64.b64encode(b"x" * before + data).decode().rstrip("=")
        # the characters at its ends have bits of what stands beside it
        text = text[-(-before * 8 // 6) : len(text) - bool((before + len(data)) % 3)]
        coded += [text, text.translate(str.maketrans("+/", "-_"))]
    yield from (form for form in dict.fromkeys(coded) if len(form) >= _END)


@dataclass(frozen=True, slots=True)
class _Seed:
    """A part of a form, by which the form, or what is left of it, is found."""

    text: str
    before: str
    after: str

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """Begin and end of as much of the form as stands around each place of the seed."""
        end = 0
        while (begin := text.find(self.text, end)) >= 0:
            end = begin + len(self.text)
            begin -= alike(self.before[::-1], text[max(0, begin - len(self.before)) : begin][::-1])
            end += alike(self.after, text[end : end + len(self.after)])
            yield begin, end


def _seeds(form: str) -> Iterator[_Seed]:
    least = max(_SHORTEST, min(_END, -(-3 * len(form) // 4)))
    parts = [(0, least), (len(form) - least, len(form))]
    parts += [(start, start + _MIDDLE) for start in range(0, len(form) - _MIDDLE + 1, _STEP)]
    yield from (_Seed(form[begin:end], form[:begin], form[end:]) for begin, end in parts)


def _decoded(text: str) -> tuple[str, Sequence[int]]:
    """A text without escapes of URLs, JSON, HTML and Python, and where each of its characters begins in the text."""
    parts: list[str] = []
    starts: list[int] = []
    done = 0
    for escape in _ESCAPE.finditer(text):
        kind, value = escape.lastgroup, escape[escape.lastgroup or 0]
        if kind == "name":
            value = _ENTITIES[value.lower()]
        elif kind != "plain":
            value = chr(int(value, 10 if kind == "decimal" else 16))
        parts += [text[done : escape.start()], value]
        starts += [*range(done, escape.start()), escape.start()]
        done = escape.end()
    if not starts:
        return text, range(len(text) + 1)
    return "".join([*parts, text[done:]]), [*starts, *range(done, len(text) + 1)]


@dataclass(frozen=True, slots=True, repr=False)
class Redaction:
    """Redacts secrets from all output: known values anywhere, and patterns of keys."""

    known: tuple[str, ...] = ()
    _seeds: tuple[_Seed, ...] = field(default=(), init=False, compare=False)

    def __post_init__(self) -> None:
        seeds = (seed for secret in self.known for form in _forms(secret) for seed in _seeds(form))
        object.__setattr__(self, "_seeds", tuple(seeds))

    def __repr__(self) -> str:
        return f"<Redaction of {len(self.known)} values>"

    def text(self, text: str) -> str:
        """Any text: an error, a log line, a URL, a command. Half characters, which no file takes, become '?'."""
        text = text.encode(errors="replace").decode()
        text = self._without_known(text)
        text = _NAMED.sub(lambda m: m[1] + HIDDEN, text)
        text = _BEARER.sub(lambda m: f"{m[1]} {HIDDEN}", text)
        text = _KEY_SHAPED.sub(HIDDEN, text)
        return self.url(text)

    def _without_known(self, text: str) -> str:
        """Known values are hidden in every encoding, and what is left of one that was cut."""
        plain, starts = _decoded(text)
        hidden = sorted(place for seed in self._seeds for place in seed.places(plain))
        parts: list[str] = []
        done = 0
        for begin, end in hidden:
            if end > done:
                parts += [text[starts[done] : starts[begin]], HIDDEN] if begin > done or not parts else []
                done = end
        return "".join([*parts, text[starts[done] :]])

    def foreign(self, text: str, characters: int = FOREIGN_CHARACTERS) -> str:
        """Words of a server as they are shown: one line without control characters and secrets, and not too long."""
        clipped = text[:FOREIGN_MOST].encode(errors="replace").decode()
        plain = "".join(c if c.isprintable() else " " for c in clipped)
        line = self.text(" ".join(plain.split()))
        return line if len(line) <= characters else line[: characters - 3] + "..."

    def url(self, url: str) -> str:
        """A URL without its user part and without the values of its secret parameters."""
        url = _USER.sub(f"{HIDDEN}@", url)
        return _QUERY.sub(lambda m: f"{m[1]}={HIDDEN}" if is_secret_name(m[1]) else m[0], url)

    def value(self, value: object, name: str = "") -> object:
        """Plain data (as of JSON): secret fields and known values inside it are hidden."""
        if isinstance(value, Mapping):
            return {k: self.value(v, str(k)) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item, name) for item in value]
        if isinstance(value, str):
            return HIDDEN if is_secret_name(name) and value else self.text(value)
        return value
