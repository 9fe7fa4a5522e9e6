"""What came back for one request, unread: bytes with the times of their arrival, and how it ended."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal

How = Literal["complete", "closed", "reset", "refused", "failed", "timeout", "cancelled"]
"""How an answer ended on the wire.

`complete`: its framing says that all of it came. `closed`: the server closed the connection (the end of an answer
without a length, or an answer cut short: the reader tells). `reset`: the connection broke. `refused`: no connection
could be opened. `failed`: anything else that kept us from sending or receiving, such as a certificate. `timeout` and
`cancelled`: we hung up.
"""


@dataclass(slots=True)
class Answer:
    """The reads of one answer, in order. Times are in seconds of the run (`time.monotonic() - epoch_s`).

    Read i brought `data[i]` (decrypted, headers and framing included), which arrived at `stamp_s[i]` and was read at
    `read_s[i]`; `process_stamps` of the stamps are times of reading, because the kernel's could not be believed.
    `sent_s` is just before the first write of the request, None when it never left; `written_s` when its last byte
    was handed to the kernel. `connect_s` is how long the request waited for a connection, None when one was open.
    `why` is the reason in words wherever `how` is not `complete` or `closed`.
    """

    sender: int = 0
    address: str = ""
    sent_s: float | None = None
    written_s: float | None = None
    connect_s: float | None = None
    resent: bool = False
    ended_s: float = 0.0
    how: How = "complete"
    why: str | None = None
    data: list[bytes] = field(default_factory=list)
    stamp_s: array[float] = field(default_factory=lambda: array("d"))
    read_s: array[float] = field(default_factory=lambda: array("d"))
    process_stamps: int = 0
