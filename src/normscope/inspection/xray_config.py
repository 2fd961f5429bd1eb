"""The settings of `xray_target`; without torch, because the command's options are made from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from normscope import checks
from normscope.errors import ConfigError
from normscope.inspection.arguments import check_model_settings


@dataclass(frozen=True, kw_only=True)
class XrayConfig:
    """Which model of a target to x-ray, what to run, and how.

    Args:
        checkpoint: Checkpoint of a run: best (default), last or a step number.
        depth: Depth of a preset; sets width, heads and context as in `normscope train`.
        model: Other settings of a preset, by name.
        batches: Number of batches (default: 1); a function's batch is repeated.
        forward_only: Skip the backward pass.
        step: Take an optimizer step after each batch: with the optimizer of the run or preset, otherwise AdamW.
            Changes only the weights in memory, no files.
        seed: Random seed for weights and tokens (default: 0).
        dtype: Autocast dtype (default: float32).
        compile: Compile the model with torch.compile; shows only its output and parameter gradients.
        cached: Run a GPT with a KV cache: half of the sequence, then token by token, without backward pass.
    """

    checkpoint: str | int = "best"
    depth: int | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    batches: int = 1
    forward_only: bool = False
    step: bool = False
    seed: int = 0
    dtype: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    cached: bool = False

    def __post_init__(self) -> None:
        checks.check_positive_int(batches=self.batches)
        checks.check_seed(seed=self.seed)
        if self.dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"dtype={checks.short_repr(self.dtype)}: choose one of float32, bfloat16")
        checks.check_flags(forward_only=self.forward_only, step=self.step, compile=self.compile, cached=self.cached)
        check_model_settings(self.model, **({} if self.depth is None else {"depth": f"depth={self.depth}"}))
        if self.cached and (self.step or self.batches > 1):
            raise ConfigError("a cached pass is one batch without backward pass\nfix: leave out step and batches")
        if self.step and self.forward_only:
            raise ConfigError("an optimizer step needs gradients\nfix: use either step or forward_only")

    @property
    def execution(self) -> str:
        """Non-default execution options (dtype, compiled, cached), for the label; empty by default."""
        parts = [self.dtype if self.dtype != "float32" else "", "compiled" * self.compile, "cached" * self.cached]
        return ", ".join(part for part in parts if part)
