"""The targets of `bench validate --against distserve-66b-chat-ae`."""

from functools import partial

from harness.acceptance.topics import _measured

rows = partial(_measured.rows_of, "distserve-66b-chat-ae", "S26")
