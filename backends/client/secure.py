"""TLS over bytes in memory, so that the socket's own reads, and their stamps, stay ours."""

import ssl
from typing import NamedTuple

READ_BYTES = 65536


class NotSecureError(Exception):
    """No secure connection; the message is what OpenSSL says, without the numbers of its source lines."""


class Plain(NamedTuple):
    """What could be decrypted, and whether the other side has said that nothing follows."""

    data: bytes
    ended: bool


class Secure:
    """One side of a TLS connection; what goes to the other side is fetched by `outgoing`."""

    __slots__ = ("_in", "_out", "_tls")

    def __init__(self, context: ssl.SSLContext, server_name: str | None) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=server_name)

    def __repr__(self) -> str:
        return f"<Secure {self._tls.version() or 'opening'}>"

    def receive(self, data: bytes) -> None:
        """Bytes from the other side."""
        self._in.write(data)

    def outgoing(self) -> bytes:
        """Bytes for the other side."""
        return self._out.read()

    def shake(self) -> bool:
        """Go on with the handshake; True when it is done. Raises NotSecureError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, ssl.CertificateError) as error:
            raise NotSecureError(_said(error)) from None
        return True

    def encrypt(self, data: bytes) -> None:
        """Make `data` part of what is outgoing."""
        self._tls.write(data)

    def decrypt(self) -> Plain:
        """All that can be read now. Raises NotSecureError."""
        parts: list[bytes] = []
        try:
            while part := self._tls.read(READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            return Plain(b"".join(parts), ended=False)
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError as error:
            raise NotSecureError(_said(error)) from None
        return Plain(b"".join(parts), ended=True)


def _said(error: Exception) -> str:
    verify = getattr(error, "verify_message", None)
    return str(verify or getattr(error, "reason", None) or error)
