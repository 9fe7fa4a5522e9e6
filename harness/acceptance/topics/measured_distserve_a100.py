"""The targets of `bench validate --against distserve-a100`."""

from functools import partial

from harness.acceptance.topics import _measured

rows = partial(_measured.rows_of, "distserve-a100", "S58.distserve")
