"""Take an x-ray from the command line: passes, dtype, compiled or cached execution."""

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import tyro

from normscope.checks import check_positive_int, check_seed
from normscope.cli.options import Flag
from normscope.cli.xray_function import user_code_errors
from normscope.cli.xray_target import XrayTarget
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import XrayRecord
from normscope.errors import ConfigError, NormscopeError
from normscope.runtime.devices import check_compile

Kind = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class PassOptions:
    """What to run."""

    batches: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Number of batches; a function's batch is repeated."""

    forward_only: Flag = False
    """Skip the backward pass."""

    step: Flag = False
    """Take an optimizer step after each batch: with the optimizer of the run or preset, otherwise AdamW. Changes only
    the weights in memory, no files."""

    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Random seed for weights and tokens."""


@dataclass(frozen=True)
class ExecutionOptions:
    """How to execute the model; in `xray diff`, the second side."""

    dtype: Annotated[Kind, tyro.conf.arg(metavar="{float32,bfloat16}")] = "float32"
    """Autocast dtype."""

    compile: Flag = False
    """Compile the model with torch.compile; shows only its output and parameter gradients."""

    cached: Flag = False
    """Run a GPT with a KV cache: half of the sequence, then token by token, without backward pass."""

    @property
    def description(self) -> str:
        parts = [self.dtype if self.dtype != "float32" else "", "compiled" * self.compile, "cached" * self.cached]
        return ", ".join(part for part in parts if part)


def take_xray(target: XrayTarget, passes: PassOptions, execution: ExecutionOptions) -> XrayRecord:
    """Take an x-ray. Errors of the model name the module in which they happened."""
    check_positive_int(batches=passes.batches)
    check_seed(seed=passes.seed)
    _check_options(target, passes, execution)
    model = target.model
    if execution.compile:
        check_compile(True, torch.device("cpu"))
        model.forward = torch.compile(model.forward)
    torch.manual_seed(passes.seed)
    label = f"{target.label}, {execution.description}" if execution.description else target.label
    xray = Xray(model, label=label, submodules=not execution.compile)
    started = False
    try:
        with ExitStack() as stack:
            stack.enter_context(_autocast(execution.dtype))
            stack.enter_context(xray)
            started = True
            _run(target, passes, execution)
    except NormscopeError:
        raise
    except Exception as error:
        if not started:  # there is no record yet
            raise
        running = [module for module in xray.record.ran if module.output is None]
        inner = f"its module {running[-1].name!r}" if running and running[-1].name else "the model"
        where = inner if running else "the loss or the backward pass"
        with user_code_errors(f"{target.label}: {where}"):
            raise error
    finally:
        model.__dict__.pop("forward", None)
        model.zero_grad(set_to_none=True)
    notices = (*xray.record.notices, *target.notices)
    return dataclasses.replace(xray.record, notices=notices, steps_before=target.steps)


def _check_options(target: XrayTarget, passes: PassOptions, execution: ExecutionOptions) -> None:
    if execution.cached and target.cached is None:
        raise ConfigError(f"--cached needs a GPT of normscope, but got {target.label}\nfix: remove --cached")
    if execution.cached and (passes.step or passes.batches > 1):
        raise ConfigError("--cached runs one batch without backward pass\nfix: remove --step and --batches")
    if passes.step and passes.forward_only:
        raise ConfigError("--step needs gradients\nfix: remove --step or --forward-only")


def _run(target: XrayTarget, passes: PassOptions, execution: ExecutionOptions) -> None:
    if execution.cached:
        assert target.cached is not None
        target.model.eval()
        with torch.no_grad():
            target.cached()
        return
    for number in range(passes.batches):
        if passes.forward_only:
            with torch.no_grad():
                target.loss(number)
            continue
        target.model.zero_grad(set_to_none=True)
        loss = target.loss(number)
        if not loss.requires_grad:
            raise ConfigError(f"no parameter of {target.label} requires a gradient\nfix: --forward-only")
        loss.backward()
        if passes.step:
            target.step()


@contextmanager
def _autocast(kind: Kind) -> Iterator[None]:
    """Autocast to this dtype. bfloat16 runs without oneDNN, which crashes on some machines and is not needed here."""
    if kind == "float32":
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
            yield
