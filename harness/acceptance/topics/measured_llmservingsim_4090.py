"""The targets of `bench validate --against llmservingsim-4090`."""

from functools import partial

from harness.acceptance.topics import _measured

rows = partial(_measured.rows_of, "llmservingsim-4090", "S58.4090")
