"""Opens the tokenizer of a user: a `tokenizer.json` of Hugging Face, through their library, an optional extra."""

import hashlib
from pathlib import Path
from typing import Any

from harness.errors import UsageError


def open_tokenizer(path: str, wanted_by: str) -> tuple[Any, str]:
    """The tokenizer, which neither cuts nor pads, and the SHA-256 of its file.

    Raises UsageError without the library (`wanted_by` begins the sentence), and for a file that is none.
    """
    try:
        from tokenizers import Tokenizer  # an optional extra
    except ImportError:
        raise UsageError(
            f"{wanted_by} needs the library tokenizers; install it with pip install 'bench[tokenizers]'."
        ) from None
    try:
        stored = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"No tokenizer '{path}': {why}; give the path of a tokenizer.json.") from None
    try:
        tokenizer = Tokenizer.from_buffer(stored)
    except Exception as error:  # noqa: BLE001  # the library raises Exception itself
        first = (str(error).splitlines() or [""])[0]
        raise UsageError(f"'{path}' is not a tokenizer.json of Hugging Face tokenizers: {first}.") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, hashlib.sha256(stored).hexdigest()
