"""Which type the products run in: what is fast and safe on the device, found out and not guessed."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

from normscope.errors import ConfigError

Precision = Literal["auto", "float32", "bfloat16"]

_PROBE = """
import json, time, torch
def seconds(kind):
    x, w = torch.randn(1024, 512).to(kind), torch.randn(2048, 512).to(kind)
    times = []
    for _ in range(12):
        start = time.perf_counter()
        torch.nn.functional.linear(x, w)
        times.append(time.perf_counter() - start)
    return sorted(times)[6]
print(json.dumps({"float32": seconds(torch.float32), "bfloat16": seconds(torch.bfloat16)}))
"""


@dataclass(frozen=True)
class PrecisionChoice:
    """The type of the products, and why.

    Args:
        dtype: float32, or bfloat16 by autocast.
        why: for people to read.
    """

    dtype: torch.dtype
    reason: str

    def autocast(self, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
        """Makes the context that each pass runs in."""
        if self.dtype == torch.float32:
            return nullcontext
        return lambda: torch.autocast(device.type, dtype=self.dtype)


def choose_precision(wanted: Precision, device: torch.device) -> PrecisionChoice:
    """The type for a device. One that was asked for by name is proven to work there first.

    On a CPU bfloat16 is emulated by some machines, at a tenth of the speed, and kills the process on others, which
    announce instructions that they do not have. So auto is float32 there, and bfloat16 has to show that it is faster.
    """
    if wanted == "float32":
        return PrecisionChoice(torch.float32, "as asked for")
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return PrecisionChoice(torch.bfloat16, "the device has it in hardware")
        if wanted == "bfloat16":
            raise ConfigError("this device has no bfloat16 in hardware\nfix: --precision float32")
        return PrecisionChoice(torch.float32, "the device has no bfloat16 in hardware")
    if wanted == "auto":
        return PrecisionChoice(torch.float32, f"the safe choice on {device.type}; bfloat16 has to be asked for")
    if device.type != "cpu":
        return PrecisionChoice(torch.bfloat16, "as asked for")
    probe = probe_bfloat16()
    if probe.ratio is None or probe.ratio < 1:
        raise ConfigError(f"bfloat16 is no good on this CPU: {probe.message}\nfix: --precision float32")
    return PrecisionChoice(torch.bfloat16, f"as asked for; {probe.message}")


@dataclass(frozen=True)
class BFloat16Probe:
    """How bfloat16 does on this CPU: how many times as fast as float32, None if it cannot run; and in words."""

    ratio: float | None
    message: str


@functools.cache
def probe_bfloat16() -> BFloat16Probe:
    """Multiply in another process, which may die of it; takes a few seconds, once."""
    try:
        done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return BFloat16Probe(None, "a product did not end within two minutes")
    if done.returncode < 0:
        return BFloat16Probe(None, f"a product kills the process (signal {-done.returncode})")
    if done.returncode:
        return BFloat16Probe(
            None, f"a product fails: {(done.stderr.strip().splitlines() or ['nobody says reason'])[-1]}"
        )
    times = json.loads(done.stdout)
    ratio = times["float32"] / times["bfloat16"]
    return BFloat16Probe(ratio, f"a product in bfloat16 is {ratio:.2f} times as fast as in float32")
