"""Keys come from the environment or a file, go to the named host only, and are never written."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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
    r"|secret|password|passwd|cookie|set-cookie)['\"]?\s*[:=]\s*['\"]?)([^\s'\",;&}]+(?: [^\s'\",;&}]+)?)",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_KEY_PLACE = re.compile(r"key[_-](env|file)['\"]?\s*[=: ]\s*['\"]?([^\s,'\"\\}]+)")
_HEADER = re.compile(
    r"(?:^|[\s\"',:])(?:-H|--header|header)['\"]?[\s=:]+(?:'(?P<quoted>[^\n']+)|\"?(?P<bare>[^\n\"]+))", re.MULTILINE
)
_BODY = re.compile(r"\{.*\}", re.DOTALL)
_BODY_IN_FILE = re.compile(r"extra[-_]body[^\n{]*(\{[^\n]*\})")
_LARGEST = 1 << 20
_SHORTEST = 4  # a shorter secret is part of many words
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
        shown = f" {key_env}" if _VARIABLE.fullmatch(key_env) else ""  # it may be the key itself
        raise UsageError(f"The variable{shown}, named by key_env, is not set; export it or use key_file.")
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
    found = [key] if key else []
    for name, value in headers:
        if is_secret_name(name):
            found += [value, *value.split()[1:]]
    found += _secret_fields(extra)
    for url in urls:
        found += [part for part in re.split("[:@]", m[0].rstrip("@")) if part] if (m := _USER.search(url)) else []
        found += [m[2] for m in _QUERY.finditer(url) if is_secret_name(m[1])]
    return Redaction(tuple(sorted({s for s in found if len(s) >= _SHORTEST}, key=len, reverse=True)))


def of_command(words: Sequence[str], environ: Mapping[str, str]) -> Redaction:
    """The secrets of a command line, of the option files that it names and of the environment."""
    words = [*words, *_nested(words)]
    files = [_small_text(word) for word in words if word.endswith((".toml", ".json"))]
    text = "\n".join([*words, *files])
    named = [environ.get(name, "") if kind == "env" else _small_text(name) for kind, name in _KEY_PLACE.findall(text)]
    secret = [value for name, value in environ.items() if is_secret_name(name) and not value.startswith(("/", "~"))]
    headers = [found["quoted"] or found["bare"] for found in _HEADER.finditer(text)]
    headers += [header.partition(",")[0] for header in headers]  # in a spec, a comma ends it
    pairs = [header.partition(mark) for header in headers for mark in ":="]
    known = redaction(
        None, [(name.strip(), value.strip()) for name, _, value in pairs], [*_bodies(words, files)], text.split()
    ).known
    values = {value.strip() for value in (*known, *named, *secret)}
    return Redaction(tuple(sorted((value for value in values if len(value) >= _SHORTEST), key=len, reverse=True)))


def _nested(words: Iterable[str]) -> Iterator[str]:
    """The words of commands that are one word here, as in --base 'bench run ...'."""
    for word in words:
        if " " in word:
            with suppress(ValueError):
                yield from shlex.split(word)


def _bodies(words: Iterable[str], files: Iterable[str]) -> Iterator[object]:
    """The JSON objects of a command line, and those that its files give as extra-body."""
    found = [m[0] for word in words if (m := _BODY.search(word))]
    found += [body.replace('\\"', '"') for file in files for body in _BODY_IN_FILE.findall(file)]
    for body in found:
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


@dataclass(frozen=True, slots=True, repr=False)
class Redaction:
    """Redacts secrets from all output: known values anywhere, and patterns of keys."""

    known: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Redaction of {len(self.known)} values>"

    def text(self, text: str) -> str:
        """Any text: an error, a log line, a URL, a command. Half characters, which no file takes, become '?'."""
        text = text.encode(errors="replace").decode()
        for secret in self.known:
            text = text.replace(secret, HIDDEN)
        text = _NAMED.sub(lambda m: m[1] + HIDDEN, text)
        text = _BEARER.sub(lambda m: f"{m[1]} {HIDDEN}", text)
        text = _KEY_SHAPED.sub(HIDDEN, text)
        return self.url(text)

    def foreign(self, text: str, characters: int = FOREIGN_CHARACTERS) -> str:
        """Words of a server as they are shown: one line without control characters and secrets, and not too long."""
        shown = text[:FOREIGN_MOST].encode(errors="replace").decode()
        plain = "".join(c if c.isprintable() else " " for c in shown)
        line = self.text(" ".join(plain.split()))
        return line if len(line) <= characters else line[: characters - 3] + "..."

    def url(self, url: str) -> str:
        """A URL without its user part and without the values of its secret parameters."""
        url = _USER.sub(f"{HIDDEN}@", url)
        return _QUERY.sub(lambda m: f"{m[1]}={HIDDEN}" if is_secret_name(m[1]) else m[0], url)

    def headers(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Name and value of headers; the value of a secret one is always redacted."""
        return [(name, HIDDEN if is_secret_name(name) else self.text(value)) for name, value in headers]

    def value(self, value: object, name: str = "") -> object:
        """Plain data (as of JSON): secret fields and known values inside it are hidden."""
        if isinstance(value, Mapping):
            return {k: self.value(v, str(k)) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item, name) for item in value]
        if isinstance(value, str):
            return HIDDEN if is_secret_name(name) and value else self.text(value)
        return value

    def argv(self, argv: Sequence[str]) -> list[str]:
        """A command line: headers (`--header 'Name: value'`, `--header=Name=value`) and everything that `text` sees."""
        found, header = [], False
        for word in argv:
            option, _, value = word.partition("=") if word.startswith("--header=") else ("", "", word)
            shown = self.text(value)
            if header or option:
                name, mark, _ = value.partition(":") if ":" in value.partition("=")[0] else value.partition("=")
                if mark and is_secret_name(name):
                    shown = f"{name}{mark}{HIDDEN}"
            found.append(f"{option}={shown}" if option else shown)
            header = word in ("--header", "-H")
        return found
