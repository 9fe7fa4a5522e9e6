"""Keys are read from where they belong and written nowhere."""

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.client.secrets import HIDDEN, Redaction, load_key, of_command, redaction
from harness.errors import UsageError

KEY = "abcdefgh12345678"


def test_the_key_comes_from_the_environment_or_a_file(tmp_path) -> None:
    """A key would have to stand in a command."""
    file = tmp_path / "key"
    file.write_text(f"  {KEY}\n")

    assert KEY == load_key(environ={"OPENAI_API_KEY": f"{KEY}\n"})
    assert KEY == load_key("MINE", environ={"MINE": KEY, "OPENAI_API_KEY": "other"})
    assert KEY == load_key(key_file=str(file), environ={})
    assert load_key(environ={}) is None


@pytest.mark.parametrize("text", ["", "two words", "line\nbreak", "ä" * 9, "x\x00y"])
def test_a_key_that_is_none_is_refused_without_being_reported(tmp_path, text: str) -> None:
    """A header could be forged, or the key be printed in the error."""
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(UsageError, match="holds no key") as error:
        load_key(key_file=str(file), environ={})

    assert not text or text not in str(error.value)


def test_a_variable_or_file_that_is_named_must_be_there(tmp_path) -> None:
    """A run would go out without the key and fail at every request."""
    with pytest.raises(UsageError, match="MINE, named by key_env, is not set"):
        load_key("MINE", environ={})
    with pytest.raises(UsageError, match="No key in key_file"):
        load_key(key_file=str(tmp_path / "none"), environ={})


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_known_secret_is_gone_from_any_text(before: str, after: str) -> None:
    """The key would stand in an error of the server."""
    assert KEY not in Redaction((KEY,)).text(f"{before}{KEY}{after}")


LONG = "Ab+/c9=Zk3Qw~x7!pR2-mN8_vT5yL0sD4gH6jF1B"
ENCODED = {
    "percent": quote(LONG, safe=""),
    "percent of every character": "".join(f"%{ord(c):02x}" for c in LONG),
    "percent twice": quote(quote(LONG, safe=""), safe=""),
    "JSON": LONG.replace("/", "\\/"),
    "JSON of every character": "".join(f"\\u{ord(c):04X}" for c in LONG),
    "JSON in JSON": json.dumps(json.dumps({"k": LONG.replace("/", "\\u002f")})),
    "HTML": "".join(f"&#{ord(c)};" for c in LONG),
    "Python": "".join(f"\\x{ord(c):02x}" for c in LONG),
    "base64": base64.b64encode(LONG.encode()).decode(),
    "base64 of user and key": base64.b64encode(b"user:" + LONG.encode()).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(b"ab" + LONG.encode() + b"tail").decode(),
    "hexadecimal": LONG.encode().hex(),
    "two lines": f"{LONG[:18]}\n{LONG[18:]}",
}


@pytest.mark.parametrize("text", ENCODED.values(), ids=ENCODED)
def test_a_known_secret_is_gone_in_every_encoding(text: str) -> None:
    """A redirect URL or a JSON text in the error of a server would hold it."""
    shown = Redaction((LONG,)).text(f"Invalid key <{text}> for 'm'")

    assert shown.startswith("Invalid key <") and shown.endswith("> for 'm'") and HIDDEN in shown
    assert not any(part in shown for at in range(len(text) - 12) if (part := text[at : at + 12]) in text[10:-8])


@given(st.integers(0, 40), st.integers(0, 40))
def test_what_is_left_of_a_secret_that_was_cut_is_gone(begin: int, end: int) -> None:
    """28 of the 40 characters of a key stood in the error of a server that cuts its sentences."""
    part = LONG[begin:end]
    shown = Redaction((LONG,)).text(f"<{part}>")

    assert (f"<{HIDDEN}>" if len(part) >= (8 if begin == 0 or end == 40 else 20) else shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {KEY}", f"authorization={KEY}", f"'x-api-key': '{KEY}'", f'"api_key": "{KEY}"',
        f"http://me:{KEY}@host/v1", f"http://{KEY}@host/v1", f"http://host/v1?api_key={KEY}&a=1",
        f"http://host/v1?token={KEY}", f"Incorrect API key provided: sk-{KEY}", f"Bearer {KEY}", f"cookie: s={KEY}",
        f"password={KEY}", f"hf_{KEY}", f'{{\\"api_key\\": \\"{KEY}\\"}}',
    ],
)  # fmt: skip
def test_patterns_of_secrets_are_hidden_even_if_unknown(text: str) -> None:
    """A secret of the server's own, or one in a URL, would be written."""
    shown = Redaction().text(text)

    assert KEY not in shown and HIDDEN in shown


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=16 of 20 tokens", "output_tokens: 12", "http://host:8000/v1?model=a&n=2", "the key is missing",
        "tokenizer=/models/a/tokenizer.json", "key_env=OPENAI_API_KEY", "--tokens 5",
        "a task-force of risk-averse people",
        "openai:url=http://127.0.0.1:8000/v1,model=m", "",
    ],
)  # fmt: skip
def test_ordinary_words_stay(text: str) -> None:
    """A report would be full of holes."""
    assert text == Redaction().text(text)


def test_data_loses_secret_fields_and_known_values() -> None:
    """run.json would hold the key of an extra field."""
    data = {
        "api_key": "x",
        "max_tokens": 5,
        "deep": [{"auth": {"password": "y"}, "said": f"no {KEY}"}],
        "tokens": "all",
        "tokenizer": "t.json",
        "key_env": "MINE",
    }

    assert {
        "api_key": HIDDEN, "max_tokens": 5, "deep": [{"auth": {"password": HIDDEN}, "said": f"no {HIDDEN}"}],
        "tokens": "all", "tokenizer": "t.json", "key_env": "MINE",
    } == Redaction((KEY,)).value(data)  # fmt: skip


def test_every_secret_of_a_run_is_known_by_its_value() -> None:
    """A server that repeats a header in its error would have it written."""
    known = redaction(
        KEY, [("X-Token", "Token gatewaysecret"), ("X-Trace", "plain")], {"credentials": {"password": "deepsecret"}},
        ["http://user:urlsecret@host/v1?api_key=querysecret"],
    )  # fmt: skip
    shown = known.text("gatewaysecret deepsecret urlsecret querysecret plain " + KEY)

    assert f"{HIDDEN} {HIDDEN} {HIDDEN} {HIDDEN} plain {HIDDEN}" == shown
    assert KEY not in repr(known) and "secret" not in repr(known)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--extra-body", '{"auth":"sup3rsecretval"}'],
        ["run", '--extra-body={"deep": {"session_token": "sup3rsecretval"}}'],
        ["run", "--extra-body", '{"credential": ["sup3rsecretval"]}'],
        ["compare", "--base", """bench run --extra-body '{"auth": "sup3rsecretval"}' --backend sim"""],
        ["compare", "--base", "bench run --header 'X-Auth: sup3rsecretval' --backend sim"],
        ["compare", "--base", "bench run --header X-Auth:sup3rsecretval --backend sim"],
        ["run", "--backend", "openai:url=http://a,header=X-Auth:sup3rsecretval"],
        ["run", "--backend", "openai:header=X-Auth=sup3rsecretval,url=http://a"],
        ["run", "--header", "X-Auth: sup3rsecretval"],
    ],
)
def test_a_crash_does_not_leak_what_a_body_a_spec_or_a_nested_command_holds(words: list[str]) -> None:
    hide = of_command(words, {}).text

    assert hide("x sup3rsecretval") == f"x {HIDDEN}"
    assert "sup3rsecretval" not in hide(" ".join(words))


def test_a_crash_does_not_leak_the_extra_body_of_a_config_file(tmp_path) -> None:
    for name, line in (("a.toml", """extra-body = '{"auth": "sup3rsecretval"}'"""),
                       ("b.json", r'''"extra_body": "{\"auth\": \"sup3rsecretval\"}"''')):  # fmt: skip
        (tmp_path / name).write_text(line)

        assert of_command(["run", "--config", str(tmp_path / name)], {}).text("x sup3rsecretval") == f"x {HIDDEN}"


def test_a_quote_inside_a_header_or_an_unfinished_body_does_not_stop_the_hiding() -> None:
    hide = of_command(["run", "--header", "X-Auth: it's-sup3r", "--extra-body", "{a 'b", "--base", "it's {x}"], {}).text

    assert hide("x it's-sup3r") == f"x {HIDDEN}"


def test_a_long_key_in_the_words_of_a_server_is_not_shown_in_part() -> None:
    """A token of 3,000 characters that a server repeats would be cut before it is known, and its beginning shown."""
    key = "eyJ0" + "a1B2" * 750

    assert f"bad token {HIDDEN}" == Redaction((key,)).foreign(f"bad token {key}")
