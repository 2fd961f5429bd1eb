"""The training configuration: validated on creation and stored with every run."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from normscope.checks import (
    check_fields,
    check_flags,
    check_non_negative,
    check_positive_int,
    check_positive_number,
    check_seed,
    is_integer,
    is_number,
    to_python_number,
)
from normscope.errors import ConfigError
from normscope.runtime.precision import Precision
from normscope.storage.json_files import JsonSource
from normscope.training.optimizers.polar_express import POLAR_EXPRESS
from normscope.training.schedule import LRSchedule, ScheduleName

OptimizerName = Literal["muon", "adamw"]
OnNaN = Literal["stop", "rollback"]
ParallelName = Literal["ddp", "fsdp"]
_CHOICES = {"optimizer": OptimizerName, "precision": Precision, "on_nan": OnNaN, "parallel": ParallelName}
WandbMode = Literal["off", "offline", "online"]
"""Of `train` and `resume`; not a setting of the run."""
LEARNING_RATES = ("matrix_lr", "lr")
INTERVALS = ("eval_every", "sample_every", "save_every", "xray_every")
FINETUNING = ("lora", "lora_alpha", "lora_dropout", "lora_targets", "freeze")
"""Settings that need the weights of another model."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Training configuration.

    Each field is an option of `normscope train`, and its description here is the option's help.

    Args:
        steps: Number of optimizer steps.
        batch: Batch size, in windows of `context` tokens.
        micro_batch: Micro-batch size for gradient accumulation: less memory, same gradients. Ranks divide each one.
        optimizer: muon (Muon for the matrices in the blocks, AdamW for everything else) or adamw.
        matrix_lr: Learning rate of the matrices in the blocks.
        lr: Learning rate of all other parameters: embeddings, head, norms, biases.
        weight_decay: Decoupled weight decay of the matrices.
        momentum: Muon momentum.
        ns_steps: Newton-Schulz steps of Muon's orthogonalization, 1 to 5.
        beta1: AdamW beta1.
        beta2: AdamW beta2.
        schedule: Shape of the learning-rate decay.
        warmup: Fraction of the steps used for warmup.
        decay: Fraction of the steps used for the decay.
        final_lr: Final learning rate, as a fraction of the peak.
        grad_clip: Clip the global gradient norm to this value (0 disables clipping).
        seed: Random seed for initialization, data order and the validation split.
        eval_every: Evaluate on the validation split every N steps.
        sample_every: Generate a sample every N steps.
        save_every: Save a checkpoint every N steps.
        xray_every: Save an x-ray snapshot every N steps and report its findings; 0 disables snapshots.
        device: cpu, cuda, mps, ...; auto uses an accelerator if there is one.
        precision: Dtype of matmuls (autocast); auto chooses the fastest safe dtype of the device.
        compile: Compile the model with torch.compile.
        parallel: With several ranks: ddp (each has the whole model) or fsdp (each has a part of every parameter).
        on_nan: On a NaN or Inf: stop, or roll back to the last checkpoint and skip the batch.
        lora: Train LoRA adapters of this rank; all other weights stay as they are (needs --from).
        lora_alpha: LoRA scale, as a multiple of 1/rank (default: the rank, a scale of 1).
        lora_dropout: Dropout probability of the adapters' inputs.
        lora_targets: Layers to adapt: comma-separated patterns such as '*.q,*.v' (default: attention and MLP).
        freeze: Parameters to keep as they are: comma-separated patterns such as 'embedding.*' (needs --from).
    """

    steps: int
    batch: int
    micro_batch: int | None = None
    optimizer: OptimizerName = "muon"
    matrix_lr: float = 0.02
    lr: float = 0.01
    weight_decay: float = 0.0
    momentum: float = 0.95
    ns_steps: int = 5
    beta1: float = 0.8
    beta2: float = 0.95
    schedule: ScheduleName = "linear"
    warmup: float = 0.0
    decay: float = 0.5
    final_lr: float = 0.0
    grad_clip: float | None = 1.0
    seed: int = 0
    eval_every: int = 0
    sample_every: int = 0
    save_every: int = 0
    xray_every: int = 0
    device: str = "auto"
    precision: Precision = "auto"
    compile: bool = False
    parallel: ParallelName = "ddp"
    on_nan: OnNaN = "stop"
    lora: int | None = None
    lora_alpha: float | None = None
    lora_dropout: float = 0.0
    lora_targets: str | None = None
    freeze: str | None = None

    def __post_init__(self) -> None:
        check_positive_int(steps=self.steps, batch=self.batch)
        check_positive_number(matrix_lr=self.matrix_lr, lr=self.lr)
        check_flags(compile=self.compile)
        for name in ("momentum", "beta1", "beta2"):
            value = getattr(self, name)
            if not (is_number(value) and 0 <= value < 1):
                raise ConfigError(f"{name}={value!r} must be at least 0 and below 1")
        check_non_negative(**{name: getattr(self, name) for name in INTERVALS})
        check_seed(seed=self.seed)
        if not (is_integer(self.ns_steps) and self.ns_steps <= len(POLAR_EXPRESS)):
            raise ConfigError(f"ns_steps={self.ns_steps!r} must be an integer from 1 to {len(POLAR_EXPRESS)}")
        if not isinstance(self.device, str):
            raise ConfigError(f"device={self.device!r} must be a device name such as 'cpu'")
        if self.micro_batch is not None:
            check_positive_int(micro_batch=self.micro_batch)
        if is_number(self.grad_clip) and self.grad_clip == 0:
            object.__setattr__(self, "grad_clip", None)
        if self.grad_clip is not None:
            check_positive_number(grad_clip=self.grad_clip)
        if not (is_number(self.weight_decay) and 0 <= self.weight_decay < math.inf):
            raise ConfigError(f"weight_decay={self.weight_decay!r} must be a finite number, zero or more")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(get_args(choices))}")
        self._check_finetuning()
        self.lr_schedule()  # validates the schedule
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, to_python_number(getattr(self, field.name)))

    def _check_finetuning(self) -> None:
        if self.lora is not None:
            check_positive_int(lora=self.lora)
            if self.lora_alpha is not None:
                check_positive_number(lora_alpha=self.lora_alpha)
            if not (is_number(self.lora_dropout) and 0 <= self.lora_dropout < 1):
                raise ConfigError(f"lora_dropout={self.lora_dropout!r} must be at least 0 and below 1")
        elif (self.lora_alpha, self.lora_dropout, self.lora_targets) != (None, 0.0, None):
            raise ConfigError("lora_alpha, lora_dropout and lora_targets are settings of LoRA\nfix: --lora RANK")
        for name in ("lora_targets", "freeze"):
            text = getattr(self, name)
            if text is not None and not (isinstance(text, str) and all(text.split(","))):
                raise ConfigError(f"{name}={text!r} must be comma-separated patterns such as 'blocks.0.*'")

    def lr_schedule(self) -> LRSchedule:
        return LRSchedule(self.steps, self.schedule, self.warmup, self.decay, self.final_lr)

    def is_xray_due(self, step: int) -> bool:
        """Whether to save an x-ray snapshot after this step."""
        return self.xray_every > 0 and (step % self.xray_every == 0 or step == self.steps)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, settings: Mapping[str, Any]) -> "TrainConfig":
        """Rebuild a config from `to_json`; missing settings get their defaults, unknown ones are an error."""
        check_fields("the training's", settings, cls)
        return JsonSource("the training's config", "restore it from a copy", ConfigError).convert(settings, cls)
