"""How an x-ray is taken from the command line: which passes, in which type, compiled or not, cached or not."""

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
from normscope.runtime.compiler import check_compile

Kind = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class PassOptions:
    """What is run while the x-ray looks."""

    batches: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """How many batches; of a function's batch, the same again."""

    forward_only: Flag = False
    """No way back: no gradients."""

    step: Flag = False
    """Let an optimiser change the weights after each batch, in memory: a run's own, a recipe's for a preset, AdamW for
    others. No file changes."""

    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Of weights and tokens that are random."""


@dataclass(frozen=True)
class ExecutionOptions:
    """In which form; with `xray diff` this is the second one's."""

    dtype: Annotated[Kind, tyro.conf.arg(metavar="{float32,bfloat16}")] = "float32"
    """The type of the products."""

    compile: Flag = False
    """Compile the model to one piece, which can only be looked at from outside: its output, its weights' gradients."""

    cached: Flag = False
    """Give a GPT half of the text, then token by token with a cache; no way back."""

    @property
    def words(self) -> str:
        ways = [self.dtype if self.dtype != "float32" else "", "compiled" * self.compile, "cached" * self.cached]
        return ", ".join(way for way in ways if way)


def take_xray(subject: XrayTarget, passes: PassOptions, form: ExecutionOptions) -> XrayRecord:
    """Take an x-ray. What the model raises is told with the module in which it happened."""
    check_positive_int(batches=passes.batches)
    check_seed(seed=passes.seed)
    _check_form(subject, passes, form)
    model = subject.model
    if form.compile:
        check_compile(True, torch.device("cpu"))
        model.forward = torch.compile(model.forward)
    torch.manual_seed(passes.seed)
    label = f"{subject.label}, {form.words}" if form.words else subject.label
    xray = Xray(model, label=label, inside=not form.compile)
    begun = False
    try:
        with ExitStack() as stack:
            stack.enter_context(_in_type(form.dtype))
            stack.enter_context(xray)
            begun = True
            _run(subject, passes, form)
    except NormscopeError:
        raise
    except Exception as error:
        if not begun:  # then there is no record to ask
            raise
        running = [module for module in xray.record.ran if module.output is None]
        inner = f"its module {running[-1].name!r}" if running and running[-1].name else "the model"
        where = inner if running else "the loss or the way back"
        with user_code_errors(f"{subject.label}: {where}"):
            raise error
    finally:
        model.__dict__.pop("forward", None)
        model.zero_grad(set_to_none=True)
    notices = (*xray.record.notices, *subject.notices)
    return dataclasses.replace(xray.record, notices=notices, steps_before=subject.steps)


def _check_form(subject: XrayTarget, passes: PassOptions, form: ExecutionOptions) -> None:
    if form.cached and subject.cached is None:
        raise ConfigError(f"{subject.label} is no GPT of normscope's, and has no cache here\nfix: leave --cached out")
    if form.cached and (passes.step or passes.batches > 1):
        raise ConfigError("with --cached one text is read, without a way back\nfix: leave --step and --batches out")
    if passes.step and passes.forward_only:
        raise ConfigError("a step needs gradients\nfix: leave --step or --forward-only out")


def _run(subject: XrayTarget, passes: PassOptions, form: ExecutionOptions) -> None:
    if form.cached:
        assert subject.cached is not None
        subject.model.eval()
        with torch.no_grad():
            subject.cached()
        return
    for number in range(passes.batches):
        if passes.forward_only:
            with torch.no_grad():
                subject.loss(number)
            continue
        subject.model.zero_grad(set_to_none=True)
        loss = subject.loss(number)
        if not loss.requires_grad:
            raise ConfigError(f"no weight of {subject.label} asks for a gradient\nfix: --forward-only")
        loss.backward()
        if passes.step:
            subject.step()


@contextmanager
def _in_type(kind: Kind) -> Iterator[None]:
    """Products in this type. bfloat16 without oneDNN, which kills the process on some machines, and is not needed for
    speed here."""
    if kind == "float32":
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
            yield
