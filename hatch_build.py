"""Compiles the core of the simulator (mypyc) and the reads of the client (C) where that is requested.

    HATCH_BUILD_HOOKS_ENABLE=1 pip install .     the wheel holds C extensions beside the sources they are made of
    python hatch_build.py FOLDER                 the packages of this checkout in FOLDER, compiled

Without either nothing is compiled: `pip install .` and editable installations run the sources.
"""

import contextlib
import os
import shutil
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TOP = Path(__file__).parent
PACKAGES = ("harness", "workloads", "backends", "reports")
COMPILED = (
    "backends/latency/_interpolated.py",
    "backends/latency/_shared.py",
    "backends/latency/abc.py",
    "backends/latency/builtin.py",
    "backends/latency/fit6.py",
    "backends/latency/roofline.py",
    "backends/serving/actions.py",
    "backends/serving/batch.py",
    "backends/serving/blocks.py",
    "backends/serving/cluster.py",
    "backends/serving/decodes.py",
    "backends/serving/handoff.py",
    "backends/serving/loop.py",
    "backends/serving/migration.py",
    "backends/serving/pipeline.py",
    "backends/serving/policies/builtin.py",
    "backends/serving/policies/vllm_v1.py",
    "backends/serving/prefix_cache.py",
    "backends/serving/replica.py",
    "backends/serving/routers/builtin.py",
    "backends/serving/speculation.py",
    "backends/simulator/loop.py",
    "backends/simulator/step_log.py",
)
"""What runs for every step or request of a simulation. Protocols and what plug-ins of others subclass stay Python."""
FROM_C = {"backends.client._reads": "backends/client/_reads.c"} if sys.platform == "linux" else {}
"""What runs for every token that a client reads; `backends/client/reads.py` is the same in Python."""
OPTIONS = ("--config-file=", "--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent")
"""Types of other packages are left out: the build then needs none of them."""

MISSING = "Compiling needs a C compiler, Python.h, mypy and setuptools"


def compile_into(folder: Path) -> bool:
    """Put the extensions into `folder`, laid out as the packages are; False where what that needs is missing."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not (shutil.which(compiler) and header.exists() and find_spec("mypyc") and find_spec("setuptools")):
        return False
    from mypyc.build import mypycify
    from setuptools import Distribution, Extension

    with tempfile.TemporaryDirectory() as generated, contextlib.chdir(TOP):
        extensions = mypycify(
            [*OPTIONS, *COMPILED], opt_level=os.environ.get("MYPYC_OPT_LEVEL", "2"), debug_level="0",
            group_name="bench", target_dir=generated,
        )  # fmt: skip
        extensions += [Extension(name, [source]) for name, source in FROM_C.items()]
        build = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
        build.build_lib, build.build_temp = str(folder), generated
        build.ensure_finalized()
        build.run()
    return True


class CompiledCore(BuildHookInterface[Any]):
    """The build hook, which only runs where `HATCH_BUILD_HOOKS_ENABLE` or the project's settings turn it on."""

    def dependencies(self) -> list[str]:
        """What compiling needs."""
        return ["mypy[mypyc]>=1.19"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the extensions to the wheel."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        if not compile_into(folder):
            self.app.display_warning(f"{MISSING}; bench is built as pure Python.")
            return
        made = [file for file in folder.rglob("*") if file.is_file()]
        build_data["force_include"] |= {str(file): str(file.relative_to(folder)) for file in made}
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """The extensions are in the wheel."""
        if version != "editable":
            self._folder.cleanup()


def main() -> None:
    """Copy the packages and compile them there."""
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    for package in PACKAGES:
        shutil.copytree(TOP / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    if not compile_into(folder.resolve()):
        print(f"{MISSING}; nothing is compiled.", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
