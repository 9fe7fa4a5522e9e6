"""What becomes of an answer that was kept unread."""

from collections.abc import Iterator

from harness.api import Ended, Request, TokenEvent
from harness.runner.transport import read


class Broken:
    """Reads one token of an answer, and meets a bug."""

    def read(self, request: Request, answer: object) -> Iterator[TokenEvent | Ended]:
        yield TokenEvent(request.id, 1.5, 1)
        raise ZeroDivisionError(f"a bug in {answer}")

    def redact(self, text: str) -> str:
        return text.replace("secret", "[hidden]")


def test_an_answer_that_cannot_be_read_is_a_row_like_others() -> None:
    """One odd answer would end the run of all others, and leave no record."""
    record = read(Broken(), Request(3, 1.0, 5, 4), "secret", 1.25)  # type: ignore[arg-type]  # as much as is needed

    assert ("error", [1.5], 1.25) == (record.status, list(record.token_s), record.sent_s)
    assert "the answer could not be read: ZeroDivisionError: a bug in [hidden]" == record.error
