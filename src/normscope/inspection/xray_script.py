"""X-ray a training script without editing it: run it, watch the models that it trains, and stop it after some steps."""

import os
import runpy
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from normscope import checks
from normscope.diagnostics.findings import find
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.watchers.training_calls import listening
from normscope.errors import ConfigError
from normscope.inspection.arguments import preserve_rng
from normscope.inspection.script_models import trained_model
from normscope.inspection.user_function import modules_beside
from normscope.inspection.xray import XrayResult

DEFAULT_STEPS = 20
_MAX_STEPS_OF_ONE = 4
"""If one optimizer steps more often than another, it makes at most so many times the steps."""
_MAX_BACKWARD = 16
"""Backward passes, and passes without any, per step that was asked for: the gradients may accumulate, or never step."""
_OWN_MODULES = ("normscope.diagnostics.", "normscope.inspection.", "normscope.tracing.")


class ScriptEnd(BaseException):
    """Ends a script after its last step. No `Exception`, so that `except Exception` does not catch it."""


@dataclass(frozen=True)
class ScriptResult:
    """The x-ray of a script.

    Args:
        xray: the x-ray; None if the script failed before a model ran.
        error: what the script raised, without the frames of the x-ray; None if it ran to its end, or was stopped.
    """

    xray: XrayResult | None
    error: BaseException | None = field(default=None, repr=False)


def xray_script(path: str | Path, arguments: Sequence[str] = (), *, steps: int = DEFAULT_STEPS) -> ScriptResult:
    """X-ray a training script, like `normscope xray --script PATH ARGUMENTS`.

    The script runs as with `python PATH ARGUMENTS`, until its optimizers have made some steps.

    Args:
        path: The script.
        arguments: Its arguments.
        steps: The number of optimizer steps after which it is stopped.
    """
    script = checks.as_path(path, "a script")
    checks.check_positive_int(steps=steps)
    if not script.is_file():
        what = "is a folder" if script.is_dir() else "does not exist"
        raise ConfigError(f"the script {script} {what}\nfix: --script path/to/train.py")
    if script.suffix == ".ipynb":
        raise ConfigError(f"{script} is a notebook\nfix: use `with normscope.xray(model):` around its training loop")
    watch = _ScriptWatch(script.name, steps)
    error: BaseException | None = None
    with preserve_rng():
        try:
            with watch, _as_main(script, arguments):
                runpy.run_path(str(script), run_name="__main__")
        except ScriptEnd:
            pass
        except SystemExit as end:
            error = None if end.code in (None, 0) else end
        except BaseException as raised:  # also Ctrl-C: the findings so far are worth showing
            error = raised.with_traceback(_without_own_frames(raised.__traceback__, script))
    if watch.xray is None:
        if error is None:
            raise ConfigError(
                f"{script} ended without training a model: no module ran whose parameters an optimizer holds\n"
                f"fix: give it the arguments with which it trains, or use a function that returns a model and a batch: "
                f"{script}:function"
            )
        return ScriptResult(None, error)
    record = watch.xray.record
    return ScriptResult(XrayResult((record,), find(record)), error)


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Arguments and modules as those of a script that Python runs. It may change the working directory for itself."""
    with chdir(Path.cwd()), _replaced(sys, "argv", [str(script), *arguments]), modules_beside(script):
        yield


@contextmanager
def _replaced(holder: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


def _without_own_frames(trace: TracebackType | None, script: Path) -> TracebackType | None:
    """Leave out what is before the first line of the script, and the hooks of the x-ray after it."""
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
        trace = trace.tb_next
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_globals.get("__name__", "").startswith(_OWN_MODULES):
            kept.append(trace)
        trace = trace.tb_next
    for one in reversed(kept):
        one.tb_next, trace = trace, one
    return trace


class _ScriptWatch:
    """Begins an x-ray before the first pass of the models that a script trains, and ends the script after some steps.

    Args:
        label: the label of the record.
        steps: the number of steps.
    """

    def __init__(self, label: str, steps: int) -> None:
        self.xray: Xray | None = None
        self._label, self._wanted = label, steps
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._stack = ExitStack()
        self._local = threading.local()
        self._process, self._thread = os.getpid(), 0
        self._steps: dict[int, int] = {}
        self._backward = self._passes = 0
        self._is_open = False

    def __enter__(self) -> None:
        make, call = Optimizer.__init__, nn.Module.__call__

        def make_optimizer(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self._optimizers.add(optimizer)

        def call_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._local, "is_inside", False) or os.getpid() != self._process:  # a worker that loads data
                return call(module, *args, **kwargs)
            self._local.is_inside = True
            try:
                self._before_call(module)
                return call(module, *args, **kwargs)
            finally:
                self._local.is_inside = False

        self._stack.enter_context(_replaced(Optimizer, "__init__", make_optimizer))
        self._stack.enter_context(_replaced(nn.Module, "__call__", call_module))
        self._stack.enter_context(torch.compiler.set_stance("force_eager"))  # not only once the x-ray has begun
        self._stack.enter_context(listening(self._hear))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._local.is_inside = True  # the end of the x-ray calls modules, which are not passes of the script
        is_failure = error is not None and not isinstance(error, ScriptEnd | SystemExit)
        self._close(error if is_failure else None)
        self._stack.close()

    def _before_call(self, module: nn.Module) -> None:
        """The script calls a module, which is in no other call."""
        if self.xray is None:
            model = trained_model(module, list(self._optimizers))
            if model is None and self._backward and any(p.requires_grad for p in module.parameters()):
                model = module  # no optimizer of torch trains it
            if model is not None and (torch.is_grad_enabled() or module.training):
                self._begin(model)
        elif threading.get_ident() == self._thread:
            self._passes += 1
            if self._is_done:
                self._close(None)
                # A thread ends silently with SystemExit.
                raise ScriptEnd if threading.current_thread() is threading.main_thread() else SystemExit

    def _begin(self, model: nn.Module) -> None:
        own = {id(parameter) for parameter in model.parameters()}
        optimizers = [
            one for one in self._optimizers if any(id(p) in own for group in one.param_groups for p in group["params"])
        ]
        self.xray = Xray(model, label=self._label, optimizer=optimizers)
        self.xray.__enter__()
        self._is_open, self._thread, self._backward = True, threading.get_ident(), 0
        handle = register_optimizer_step_post_hook(self._after_step)
        self._stack.callback(handle.remove)

    def _close(self, error: BaseException | None) -> None:
        if self.xray is not None and self._is_open:
            self._is_open = False
            self.xray.__exit__(None if error is None else type(error), error, None)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1

    def _hear(self, event: str, *_: Any) -> None:
        if event == "before_backward":
            self._backward += 1
            self._passes = 0

    @property
    def _is_done(self) -> bool:
        steps = self._steps.values()
        enough = min(steps, default=0) >= self._wanted or max(steps, default=0) >= _MAX_STEPS_OF_ONE * self._wanted
        return enough or max(self._backward, self._passes) >= _MAX_BACKWARD * self._wanted
