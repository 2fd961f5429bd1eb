"""What a training run is told: one frozen value, checked when it is made and written in full beside the weights."""

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
from normscope.storage.json_files import convert
from normscope.training.optimizers.orthogonalize import POLAR_EXPRESS
from normscope.training.schedule import Schedule, Shape

OptimiserName = Literal["muon", "adamw"]
OnNaN = Literal["stop", "rewind"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained.

    Args:
        steps: how many times the weights change.
        batch: how many windows of text each step learns from.
        micro_batch: how many of them go through the model at a time; fewer take less memory and give the same
            gradients. None takes all at once.
        optimiser: muon, for matrices, with AdamW for the rest; or adamw for everything.
        matrix_rate: the learning rate of the matrices inside the blocks.
        rate: the learning rate of all other weights: embeddings, head, gains, biases.
        weight_decay: what matrices lose in each step, times their learning rate.
        momentum, muon_steps: see `Muon`.
        beta1, beta2: how long AdamW remembers gradients and their squares.
        schedule, warmup, decay, final_rate: see `Schedule`.
        clip: the largest norm that all gradients together may have; None for any.
        seed: of the first weights and of the order of the batches.
        evaluate_every, sample_every, save_every: after how many steps; 0 is only at the end.
        xray_every: after how many steps an x-ray of the model is taken and kept; 0 is never.
        device: cpu, cuda, mps and so on; auto takes an accelerator if there is one.
        precision: float32 or bfloat16 products; auto takes what is fast and safe on the device.
        compile: let torch.compile work on the model first.
        on_nan: at a number that is not finite, stop, or rewind to the last checkpoint and pass the batch over.
    """

    steps: int
    batch: int
    micro_batch: int | None = None
    optimiser: OptimiserName = "muon"
    matrix_rate: float = 0.02
    rate: float = 0.01
    weight_decay: float = 0.0
    momentum: float = 0.95
    muon_steps: int = 5
    beta1: float = 0.8
    beta2: float = 0.95
    schedule: Shape = "linear"
    warmup: float = 0.0
    decay: float = 0.5
    final_rate: float = 0.0
    clip: float | None = 1.0
    seed: int = 0
    evaluate_every: int = 0
    sample_every: int = 0
    save_every: int = 0
    xray_every: int = 0
    device: str = "auto"
    precision: Precision = "auto"
    compile: bool = False
    on_nan: OnNaN = "stop"

    def __post_init__(self) -> None:
        check_positive_int(steps=self.steps, batch=self.batch)
        check_positive_number(matrix_rate=self.matrix_rate, rate=self.rate)
        check_flags(compile=self.compile)
        for name, least, most in (("momentum", 0, 1), ("beta1", 0, 1), ("beta2", 0, 1)):
            value = getattr(self, name)
            if not (is_number(value) and least <= value < most):
                raise ConfigError(f"{name}={value!r} must be at least {least} and below {most}")
        check_non_negative(
            evaluate_every=self.evaluate_every,
            sample_every=self.sample_every,
            save_every=self.save_every,
            xray_every=self.xray_every,
        )
        check_seed(seed=self.seed)
        if not (is_integer(self.muon_steps) and self.muon_steps <= len(POLAR_EXPRESS)):
            raise ConfigError(f"muon_steps={self.muon_steps!r} must be a whole number from 1 to {len(POLAR_EXPRESS)}")
        if not isinstance(self.device, str):
            raise ConfigError(f"device={self.device!r} must be a name, for instance 'cpu'")
        if self.micro_batch is not None:
            check_positive_int(micro_batch=self.micro_batch)
        if self.clip is not None:
            check_positive_number(clip=self.clip)
        if not (is_number(self.weight_decay) and 0 <= self.weight_decay < math.inf):
            raise ConfigError(f"weight_decay={self.weight_decay!r} must be a finite number, zero or more")
        for name, choices in (("optimiser", OptimiserName), ("precision", Precision), ("on_nan", OnNaN)):
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(get_args(choices))}")
        self.rates()  # refuses a schedule that cannot be
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, to_python_number(getattr(self, field.name)))

    def rates(self) -> Schedule:
        return Schedule(self.steps, self.schedule, self.warmup, self.decay, self.final_rate)

    def xray_is_due(self, done: int) -> bool:
        """Whether an x-ray is to be kept after so many steps."""
        return self.xray_every > 0 and (done % self.xray_every == 0 or done == self.steps)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, settings: Mapping[str, Any]) -> "TrainConfig":
        """The config that was written as these settings; one that is unknown or missing is refused by name."""
        check_fields("the training's", settings, [field.name for field in dataclasses.fields(cls)])
        return convert(settings, cls, name="the training's config", fix="put it back as it was", error=ConfigError)
