"""GPUs and the links between them, from their data sheets."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from normscope.blocks.checks import lookup
from normscope.checks import check_positive_int, check_positive_number

MatmulDtype = Literal["bfloat16", "float32"]


@dataclass(frozen=True)
class GPU:
    """A GPU in a server with several of them. All rates are peaks, without sparsity.

    Args:
        name: Product.
        source: Data sheets of the GPU, and of the server whose network is assumed.
        memory_gb: Memory in GB of 2^30 bytes.
        bfloat16_tflops, float32_tflops: 10^12 operations per second. Those of float32 are without TF32, which PyTorch
            does not use unless told to.
        node_bandwidth: GB (10^9 bytes) per second from one GPU to others of the same server.
        network_bandwidth: the same from one server to others, over all of its network cards.
    """

    name: str
    source: str
    memory_gb: float
    bfloat16_tflops: float
    float32_tflops: float
    node_bandwidth: float
    network_bandwidth: float

    @property
    def memory(self) -> int:
        """Memory in bytes."""
        return int(self.memory_gb * 2**30)

    def flops(self, dtype: MatmulDtype) -> float:
        """Operations per second in matrix products of this dtype."""
        return 1e12 * (self.bfloat16_tflops if dtype == "bfloat16" else self.float32_tflops)


# NVLink data sheets add up both directions; here is one. Network: eight cards of 200 or 400 Gb/s.
GPUS: Mapping[str, GPU] = {
    "a100": GPU("A100 SXM 80 GB", "NVIDIA A100 and DGX A100 data sheets", 80, 312, 19.5, 300, 200),
    "h100": GPU("H100 SXM 80 GB", "NVIDIA H100 and DGX H100 data sheets", 80, 989.4, 66.9, 450, 400),
    "h200": GPU("H200 SXM 141 GB", "NVIDIA H200 and DGX H200 data sheets", 141, 989.4, 66.9, 450, 400),
    "b200": GPU("B200 180 GB", "NVIDIA HGX B200 and DGX B200 data sheets", 180, 2250, 75, 900, 400),
}


def find_gpu(name: str, **changes: float | None) -> GPU:
    """Look up a GPU and replace facts; None keeps a fact.

    >>> find_gpu("h100", network_bandwidth=50.0).network_bandwidth, find_gpu("a100").node_bandwidth
    (50.0, 300)
    """
    given: dict[str, Any] = {field: value for field, value in changes.items() if value is not None}
    check_positive_number(**given)
    return dataclasses.replace(lookup("GPU", name, GPUS), **given)


@dataclass(frozen=True)
class Cluster:
    """Equal servers of GPUs, and what is assumed about the rates that they reach.

    Args:
        gpu: The GPU.
        gpus_per_node: GPUs in a server.
        mfu: Part of its peak that a GPU reaches in forward and backward passes.
        link_efficiency: Part of their peak that links reach.
        latency: Seconds from one GPU to another.
    """

    gpu: GPU
    gpus_per_node: int = 8
    mfu: float = 0.4
    link_efficiency: float = 0.8
    latency: float = 1e-5

    def __post_init__(self) -> None:
        check_positive_int(gpus_per_node=self.gpus_per_node)

    def bandwidth(self, gpus: int) -> float:
        """Bytes per second that a GPU sends in a ring of GPUs, whose slowest link is the network between servers."""
        inside = self.gpu.node_bandwidth
        slowest = inside if gpus <= self.gpus_per_node else min(inside, self.gpu.network_bandwidth)
        return self.link_efficiency * 1e9 * slowest
