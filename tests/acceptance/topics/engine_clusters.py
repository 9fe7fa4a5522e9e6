"""Clusters of the engine beside the simulator: paced ones at a quarter of the speed of an A100."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import backends.latency
from acceptance.rows import Place, Row
from acceptance.topics._paced import LATENCY, System, against_simulator

SLOWDOWN = 4
"""Clusters are tried at a quarter of the speed: their processes share the cores of this machine."""
LINK = f"{600 // SLOWDOWN}GBps"
"""The NVLink of an A100, at a quarter of the speed too."""
LAYOUTS: Mapping[str, Mapping[str, object]] = {
    "2p1d": {"prefill": 2, "decode": 1, "link": LINK},
    "1p2d": {"prefill": 1, "decode": 2, "link": LINK},
    "freeness": {"replicas": 2, "router": "freeness", "link": LINK},
    "replicas": {"replicas": 4},
}


def rows(place: Place) -> Iterator[Row]:
    """S27.d, in 15 minutes, most of which the engine sleeps."""
    latency = f"abc:{quarter_speed(place.work / 'quarter.toml')}"
    for name, layout in LAYOUTS.items():
        title = " ".join(f"--{option} {value}" for option, value in layout.items())
        system = System(
            f"S27.d.{name}", title, latency, "ttft=1.2,tpot=0.24", "20s", layout, f"{LATENCY} times {SLOWDOWN}"
        )
        yield against_simulator(system, place)


def quarter_speed(file: Path) -> Path:
    """A file with the constants of LATENCY, every step four times as long."""
    stored = Path(backends.latency.__file__).with_name("abc.toml").read_text(encoding="utf-8")
    constants = tomllib.loads(stored)["main"]["vllm"]["opt-13b"]["tp1"]  # in milliseconds
    slow = {name: [SLOWDOWN * ms / 1000 for ms in each] for name, each in constants.items()}
    file.write_text("".join(f"{name}_s = {each}\n" for name, each in slow.items()), encoding="utf-8")
    return file
