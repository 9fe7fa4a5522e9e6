"""The targets of `bench validate --against apex-h100`."""

from functools import partial

from harness.acceptance.topics import _measured

rows = partial(_measured.rows_of, "apex-h100", "S58.apex")
