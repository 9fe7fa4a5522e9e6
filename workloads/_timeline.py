"""Orders requests that are made task by task by time, and gives them ids and the ids of their parents."""

import numpy as np

Columns = dict[str, np.ndarray]


class Timeline:
    """Rows go in as they are made and come out by (`at_s`, order of making), numbered from 0.

    `parent` and `parents` go in as numbers of making: a row waits for the `parents` rows from number `parent` on.
    """

    def __init__(self) -> None:
        self._made = 0
        self._waiting: Columns = {}
        self._id_of = np.empty(1024, np.int64)  # id by number of making
        self._given = 0

    def __repr__(self) -> str:
        return f"<Timeline {self._made - self._given} waiting, {self._given} given>"

    def add(self, rows: Columns, until_s: float) -> Columns:
        """Take rows in, give those due up to `until_s`; no row added later may be due before it."""
        count = len(rows["at_s"])
        rows = {**rows, "made": np.arange(self._made, self._made + count)}
        self._made += count
        at_s, made = self._with(rows, "at_s"), self._with(rows, "made")
        due, later = np.flatnonzero(at_s <= until_s), np.flatnonzero(at_s > until_s)
        due = due[np.lexsort((made[due], at_s[due]))]
        ready: Columns = {}
        for name in rows:  # one after the other: a column is in memory twice, not all of them
            whole = self._with(rows, name)
            ready[name], self._waiting[name] = whole[due], _small(whole[later])
        return self._numbered(ready)

    def _with(self, rows: Columns, name: str) -> np.ndarray:
        """A column of what waits and of the new rows."""
        return np.concatenate((self._waiting[name], rows[name])) if name in self._waiting else rows[name]

    def _numbered(self, rows: Columns) -> Columns:
        """The rows with `id`, and with `after` (ids, flat) of `parents` each instead of `parent`."""
        made = rows.pop("made")
        ids = np.arange(self._given, self._given + len(made))
        if self._made > len(self._id_of):
            self._id_of = np.concatenate((self._id_of, np.empty(max(self._made, len(self._id_of)), np.int64)))
        self._id_of[made] = ids
        self._given += len(made)
        parents = rows["parents"]
        within = np.arange(parents.sum()) - np.repeat(np.cumsum(parents) - parents, parents)
        after = self._id_of[np.repeat(rows.pop("parent").astype(np.int64), parents) + within]
        return {**rows, "id": ids, "after": after}


def _small(values: np.ndarray) -> np.ndarray:
    """Whole numbers in 4 bytes where they fit: very many rows may wait for days."""
    if values.dtype != np.int64 or not len(values):
        return values
    fits = values.max() < 1 << 31 and values.min() >= -(1 << 31)
    return values.astype(np.int32) if fits else values
