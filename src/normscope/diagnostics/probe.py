"""`with xray(model) as x:` looks at whatever happens to the model inside of the block."""

import dataclasses
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from normscope._version import __version__
from normscope.diagnostics.collect.functions import FunctionTracer
from normscope.diagnostics.collect.modules import COMPILED, ModuleHooks
from normscope.diagnostics.collect.norms import compare_running_stats
from normscope.diagnostics.collect.parameters import ParameterTracker
from normscope.diagnostics.collect.session import XraySession
from normscope.diagnostics.collect.unregistered_parameters import UnregisteredParameters
from normscope.diagnostics.findings import Finding, find
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.record_json import save_record
from normscope.errors import ConfigError
from normscope.storage.files import write_atomically


class Xray:
    """Looks at a model: run it forward, backward and a step inside of the block, once or for many batches.

    Nothing in the model is changed: hooks are there for as long as the block lasts, also if it ends with an error;
    modes, weights, gradients and generators of random numbers are not touched. Of activations only figures are kept.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> with Xray(model) as x:
    ...     model(torch.randn(16, 4)).square().mean().backward()
    >>> [module.name for module in x.record.ran]
    ['', '0', '1', '2']
    >>> x.record["1"].output.min
    0.0

    Args:
        model: any module of torch.
        label: a word for the record, such as the step it was taken at.
        inside: look at all of the modules; else only at the model as a whole and at its weights, as it has to be where
            the way through the model is compiled to one piece.
    """

    def __init__(self, model: nn.Module, *, label: str = "", inside: bool = True) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"an x-ray is taken of a torch module, but got {type(model).__name__}\n"
                f"fix: with xray(model): ..., and call the model inside of the block"
            )
        self._model, self._label, self._inside = model, label, inside
        self._session = XraySession()
        self._modules = ModuleHooks(_inner(model, self._session), self._session)
        self._unregistered = UnregisteredParameters(_inner(model, self._session))
        self._parameters = ParameterTracker(_inner(model, self._session), self._session, self._unregistered)
        self._stack: ExitStack | None = None
        self._record: XrayRecord | None = None

    def __enter__(self) -> Self:
        if self._stack is not None or self._record is not None:
            raise ConfigError("an x-ray is taken once\nfix: make another one: with xray(model) as x: ...")
        with ExitStack() as stack:
            stack.callback(self._stop)
            if not self._inside:
                self._session.notice("the model was looked at from outside, as a whole")
            elif "torch._dynamo" in sys.modules:  # also for a compiled function that calls the model
                if _is_compiled(self._model):
                    self._session.notice(COMPILED)
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            self._modules.start(self._inside)
            self._parameters.start()
            if self._inside:
                stack.enter_context(FunctionTracer(self._session, self._unregistered))
            self._session.is_active = True
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stack is not None
        stack, self._stack = self._stack, None
        stack.close()
        if error is not None:
            self._session.notice(
                f"the block ended with {type(error).__name__}: what would have come after was not seen"
            )
        self._record = dataclasses.replace(self._finish(), interrupted=error is not None)

    def _stop(self) -> None:
        self._session.stop()
        self._modules.stop()
        self._parameters.stop()

    @property
    def record(self) -> XrayRecord:
        """What was seen. It is there after the block, also if the block ended with an error."""
        if self._record is None:
            raise ConfigError("the record is made when the block ends\nfix: read it after the with block")
        return self._record

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, the worst first."""
        return find(self.record)

    def show(self) -> None:
        """Print the findings and the tree of modules."""
        from normscope.diagnostics.report.print import print_record

        print_record(self.record, self.findings)

    def save(self, path: str | Path) -> None:
        """Write the record as .json, or a page for a browser as .html, by the ending of the file's name."""
        path = Path(path)
        if path.suffix == ".html":
            from normscope.diagnostics.report.page import render_page

            write_atomically(path, render_page(self.record, self.findings))
        elif path.suffix == ".json":
            save_record(self.record, path)
        else:
            raise ConfigError(f"an x-ray is saved as .json or as .html, but got {path.name}\nfix: {path.stem}.html")

    def _finish(self) -> XrayRecord:
        session, names, batches = self._session, self._modules.names, self._modules.batches
        if batches and not session.batches:
            session.notice(
                "only parts of the model were called: a batch is a call of the one that was called least often"
            )
        by_name = {name: module for module, name in names.items()}
        finished = []
        for name, accumulator in list(session.accumulators.items()):
            if accumulator.is_function:
                continue
            module = by_name.get(name)
            if module is not None and accumulator.norm is not None:
                session.guarded(f"the memory of `{name}`", compare_running_stats, accumulator.norm, module)
            parameters = () if module is None else self._parameters.of(module, name)
            finished.append(accumulator.finish(batches, parameters))
            finished += [session.accumulators[own].finish(batches, ()) for own in session.functions.get(name, [])]
        return XrayRecord(
            model=type(_inner(self._model, session)).__name__,
            modules=tuple(finished),
            batches=batches,
            backward_passes=self._parameters.backwards,
            steps=tuple(self._parameters.steps),
            losses=tuple(session.losses),
            notices=tuple(session.notices),
            normscope=__version__,
            torch=torch.__version__,
            label=self._label,
            skipped_steps=session.skipped_steps,
            foreign_optimizer_steps=self._parameters.strange_steps,
            steps_without_zero_grad=self._parameters.zero_grad.steps,
            unregistered_parameters=self._unregistered.finish(),
        )


xray = Xray
"""As people write it: `with normscope.xray(model) as x:`."""


def _inner(model: nn.Module, session: XraySession) -> nn.Module:
    """The model inside of what torch has wrapped it in."""
    while True:
        if isinstance(model, _compiled_kinds()):
            model = model._orig_mod
        elif isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            session.notice(f"{type(model).__name__}: the figures are those of this process's share of the batch")
            model = model.module
        else:
            return model


def _compiled_kinds() -> Any:
    """What torch.compile makes of a module; nothing as long as its compiler, which takes a second, is not loaded."""
    return torch._dynamo.OptimizedModule if "torch._dynamo" in sys.modules else ()


def _is_compiled(model: nn.Module) -> bool:
    kinds = _compiled_kinds()
    return any(isinstance(module, kinds) or module._compiled_call_impl is not None for module in model.modules())
