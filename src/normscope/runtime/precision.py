"""Choose the dtype of matmuls: the fastest safe one on the device."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from normscope.errors import ConfigError

if TYPE_CHECKING:
    import torch  # imported by the functions below: a command reads its options, such as `Precision`, without torch

Precision = Literal["auto", "float32", "bfloat16"]

_PROBE = """
import json, time, torch
def seconds(kind):
    x, w = torch.randn(512, 512).to(kind), torch.randn(1024, 512).to(kind)
    times = []
    for _ in range(7):  # few and small products: emulated bfloat16 can be ten times as slow as float32
        start = time.perf_counter()
        torch.nn.functional.linear(x, w)
        times.append(time.perf_counter() - start)
    return sorted(times)[3]
print(json.dumps({"float32": seconds(torch.float32), "bfloat16": seconds(torch.bfloat16)}))
"""


@dataclass(frozen=True)
class PrecisionChoice:
    """The dtype of matrix products, and the reason for it.

    Args:
        dtype: float32, or bfloat16 with autocast.
        reason: Shown to the user.
    """

    dtype: "torch.dtype"
    reason: str

    def autocast(self, device: "torch.device") -> Callable[[], AbstractContextManager[Any]]:
        """A function that returns the context for forward passes."""
        import torch

        if self.dtype == torch.float32:
            return nullcontext
        return lambda: torch.autocast(device.type, dtype=self.dtype)


def choose_precision(wanted: Precision, device: "torch.device") -> PrecisionChoice:
    """Choose the dtype for a device; bfloat16 on a CPU is probed first.

    On some CPUs bfloat16 is emulated at a tenth of the speed; on others, which report instructions they do not have,
    it crashes the process. So auto is float32 on a CPU, and bfloat16 must prove to be faster.
    """
    import torch

    if wanted == "float32":
        return PrecisionChoice(torch.float32, "as requested")
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return PrecisionChoice(torch.bfloat16, "the device has it in hardware")
        if wanted == "bfloat16":
            raise ConfigError("this device has no bfloat16 in hardware\nfix: --precision float32")
        return PrecisionChoice(torch.float32, "the device has no bfloat16 in hardware")
    if wanted == "auto":
        return PrecisionChoice(torch.float32, f"the safe choice on {device.type}; bfloat16 is opt-in")
    if device.type != "cpu":
        return PrecisionChoice(torch.bfloat16, "as requested")
    probe = probe_bfloat16()
    if probe.ratio is None or probe.ratio < 1:
        raise ConfigError(f"bfloat16 is not usable on this CPU: {probe.message}\nfix: --precision float32")
    return PrecisionChoice(torch.bfloat16, f"as requested; {probe.message}")


@dataclass(frozen=True)
class BFloat16Probe:
    """Speed of bfloat16 relative to float32 on this CPU (None if it cannot run), and a message."""

    ratio: float | None
    message: str


@functools.cache
def probe_bfloat16() -> BFloat16Probe:
    """Multiply in a subprocess, which may crash; takes a few seconds, once."""
    try:
        done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return BFloat16Probe(None, "a matrix product timed out after two minutes")
    if done.returncode < 0:
        return BFloat16Probe(None, f"a matrix product crashes the process (signal {-done.returncode})")
    if done.returncode:
        return BFloat16Probe(
            None, f"a matrix product fails: {(done.stderr.strip().splitlines() or ['no error message'])[-1]}"
        )
    times = json.loads(done.stdout)
    ratio = times["float32"] / times["bfloat16"]
    return BFloat16Probe(ratio, f"a bfloat16 product is {ratio:.2f} times as fast as float32")
