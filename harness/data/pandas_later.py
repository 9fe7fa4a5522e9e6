"""Keeps pandas, a third of the time of a short command, out of pyarrow until something else imports it.

pyarrow imports pandas at its first conversion, in C++, where Ctrl-C is lost too. Where a plug-in or a caller of the
Python API imports pandas later, pyarrow imports it at once: before, there is no object of pandas to convert.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import dateutil.relativedelta  # noqa: F401  # imported there too
import pyarrow as pa


class _Pandas(Loader):
    """A finder that hides pandas from the first conversion of pyarrow, and then a loader that hands it over."""

    hidden = True

    def find_spec(self, name: str, _: Sequence[str] | None, __: ModuleType | None = None) -> ModuleSpec | None:
        if name != "pandas":
            return None
        if self.hidden:
            raise ModuleNotFoundError(name=name)
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            self._spec, self._loader, spec.loader = spec, spec.loader, self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._spec.loader = self._loader
        self._loader.exec_module(module)
        pa.lib._pandas_api.pd  # noqa: B018, SLF001  # imports it


if "pandas" not in sys.modules:
    pandas = _Pandas()
    sys.meta_path.insert(0, pandas)
    pa.array([])
    pandas.hidden = False
