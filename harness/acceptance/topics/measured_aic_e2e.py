"""The targets of `bench validate --against aic-e2e`."""

from functools import partial

from harness.acceptance.topics import _measured

rows = partial(_measured.rows_of, "aic-e2e", "S58.aic")
