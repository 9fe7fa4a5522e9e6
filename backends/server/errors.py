"""Errors as OpenAI's API tells them: a status and `{"error": {"message", "type", "param", "code"}}`."""

import json
from collections.abc import Mapping

TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}


class Refused(Exception):
    """The request gets this answer instead of tokens; `message` is one sentence for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


def body(status: int, message: str, param: str | None = None, code: str | None = None) -> str:
    """The JSON text of an error."""
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})
