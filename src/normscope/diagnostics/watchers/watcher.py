"""`Watcher`: a part of the x-ray that watches one side of training, such as the losses or the steps."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.parameters import ParameterTracker
from normscope.diagnostics.collect.session import CallFrame, XraySession
from normscope.diagnostics.hints import Hints
from normscope.tracing.tracer import FunctionCall


@dataclass(frozen=True)
class Watched:
    """What is watched.

    Args:
        model: the model, without wrappers.
        names: its modules and their first names.
        session: the state of the x-ray.
        parameters: its parameters.
        hints: what the user said about the training loop, often nothing.
    """

    model: nn.Module
    names: dict[nn.Module, str]
    session: XraySession
    parameters: ParameterTracker
    hints: Hints = field(default_factory=Hints)


class Watcher:
    """Watches one side of training. Override the events of interest, and `finish`.

    Events come from the thread that the x-ray was entered in, while it is active. They come in every step of a long
    x-ray, also in those whose tensors are not measured (`session.sampling`), but not from the arithmetic of an
    optimizer. An error in an event becomes a notice. Watchers leave no trace: they never change a tensor, a mode, or
    the state of a random number generator.
    """

    functions: ClassVar[Collection[str] | None] = ()
    """Names of the torch functions that `call_function` gets, as `function_name` returns them; None for all."""

    def __init__(self, watched: Watched) -> None:
        self.watched, self.session = watched, watched.session

    def start(self) -> None:
        """The block begins."""

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        """A module is called, inside the calls `outer`."""

    def exit_module(self, frame: CallFrame, output: Any) -> None:
        """The call of a module ended; `output` is None after an error."""

    def call_outside_module(self, module: nn.Module, args: Any) -> None:
        """A module that is not part of the model is called."""

    def call_function(self, call: FunctionCall, result: Any) -> None:
        """A torch function returned, inside a module (`call.frames`) or outside of all."""

    def fail_function(self, call: FunctionCall) -> None:
        """A torch function, of any name, raised an error."""

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """A backward pass starts from these tensors: `loss.backward()`, or `torch.autograd.backward`."""

    def after_backward(self, roots: Sequence[Tensor]) -> None:
        """A backward pass ended, perhaps with an error."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Any optimizer is about to step, also one that holds no parameter of the model."""

    def after_step(self, optimizer: Optimizer) -> None:
        """Any optimizer has stepped."""

    def zero_grad(self, owner: Optimizer | nn.Module) -> None:
        """`zero_grad()` of an optimizer or a module is about to run."""

    def step_schedule(self, scheduler: Any) -> None:
        """A learning rate scheduler has stepped."""

    def clip_gradients(self, parameters: Sequence[Tensor], norm: Tensor, limit: float) -> None:
        """`clip_grad_norm_` limits gradients whose norm is `norm`."""

    def iterate_loader(self, loader: Any) -> None:
        """A DataLoader starts an iteration."""

    def stop(self) -> None:
        """The block has ended; tensors that the watcher holds should be dropped in `finish`."""

    def finish(self) -> dict[str, Any]:
        """What was seen, as fields of `XrayRecord`."""
        return {}
