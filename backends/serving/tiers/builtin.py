"""Tiers of a memory hierarchy below that of the GPUs: the usual ones, a class each."""

from dataclasses import dataclass
from typing import Literal

from harness.bounds import AtLeastOne, Checked, NotNegative, Positive

GB = 1e9


@dataclass(frozen=True, slots=True)
class Dram(Checked):
    """Host memory of a node: what its GPUs fill or give up is stored there, and comes back over PCIe.

    Source: FastSwitch (arXiv 2411.18424) gives each GPU 60 GB of host memory for KV.

    `pcie_bytes_per_s` is what loads reach, and beside them writes: by default 0.78 of one direction of PCIe to each GPU
    of a replica. `replicas` of them share a memory and this rate.
    """

    size_bytes: Positive = 60 * GB
    pcie_bytes_per_s: Positive = 25 * GB
    latency_s: NotNegative = 0.0
    replicas: AtLeastOne = 1
    write: Literal["through", "back"] = "through"

    @property
    def load_bytes_per_s(self) -> float:
        """That of PCIe."""
        return self.pcie_bytes_per_s

    @property
    def store_bytes_per_s(self) -> float:
        """The same."""
        return self.pcie_bytes_per_s


@dataclass(frozen=True, slots=True)
class Ssd(Checked):
    """A local disk of a node, over NVMe.

    Source: Samsung's sheet of the PM9A3 of 3.84 TB: reads of 6.9 GB/s, writes of 4.1 GB/s; 0.1 ms is the usual latency
    of a read.

    By default it stores what the tier above it gives up. `replicas` of them share a disk and its rates.
    """

    size_bytes: Positive = 3840 * GB
    load_bytes_per_s: Positive = 6.9 * GB
    store_bytes_per_s: Positive = 4.1 * GB
    latency_s: NotNegative = 1e-4
    replicas: AtLeastOne = 1
    write: Literal["through", "back"] = "back"


@dataclass(frozen=True, slots=True)
class Pool(Checked):
    """The memories of all nodes as one, which every replica reaches over its own network.

    Source: Qin et al., Mooncake, FAST 2025: 1 TB of DRAM is 3 million tokens of LLaMA3-70B a node, with up to 8 NICs of
    400 Gbit/s; one of them is assumed here.

    `size_bytes` are those of all nodes. Nodes are no bottleneck: blocks are spread over all of them.
    """

    size_bytes: Positive = 1000 * GB
    load_bytes_per_s: Positive = 50 * GB
    store_bytes_per_s: Positive = 50 * GB
    latency_s: NotNegative = 1e-5
    write: Literal["through", "back"] = "through"

    @property
    def replicas(self) -> None:
        """All."""
        return
