"""Build the environments of `environments.toml` under .nightly/, one after the other: `python build_environments.py`.

Names given as arguments choose some of them. What is built already, at the same versions, is left as it is.
"""

import argparse
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
NIGHTLY = HERE.parents[1] / ".nightly"
RECIPES = tomllib.loads((HERE / "environments.toml").read_text(encoding="utf-8"))
TOOLS = NIGHTLY / "tools"  # uv links equal files of several environments, so that torch lies on the disk once


def uv(*arguments: str) -> None:
    subprocess.run(
        [TOOLS / "bin" / "uv", *arguments], check=True, env=os.environ | {"UV_CACHE_DIR": str(NIGHTLY / "cache")}
    )


def build(name: str, torch_index: str) -> None:
    """Make .nightly/`name`; the stamp inside is written last, so that a build cut short is not taken for one."""
    folder, recipe = NIGHTLY / name, RECIPES[name]
    stamp = folder / ".built"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == repr(recipe):
        print(f"{name}: built before")
        return
    start_s = time.monotonic()
    uv("venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
    python = ("--python", str(folder / "bin" / "python"))
    index = ("--extra-index-url", torch_index, "--index-strategy", "unsafe-best-match") if torch_index else ()
    uv("pip", "install", "--quiet", "--compile-bytecode", *python, *index, *recipe["requires"])
    if recipe.get("removes"):
        uv("pip", "uninstall", "--quiet", *python, *recipe["removes"])
    stamp.write_text(repr(recipe), encoding="utf-8")
    print(f"{name}: {', '.join(recipe['requires'])}, built in {time.monotonic() - start_s:.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*RECIPES, []], help="which to build; all by default")
    parser.add_argument("--torch-index", default="", help="package index that has torch for CPUs")
    given = parser.parse_args()
    os.nice(5)
    if not (TOOLS / "bin" / "uv").exists():
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(TOOLS))
        locked = HERE.parents[1] / ".ci" / "installer.lock"
        subprocess.run([*pip, "--require-hashes", "-r", str(locked)], check=True)
    failed = []
    for name in given.names or RECIPES:
        try:
            build(name, given.torch_index)
        except subprocess.CalledProcessError as error:
            print(f"{name}: not built ({error})", file=sys.stderr, flush=True)
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
