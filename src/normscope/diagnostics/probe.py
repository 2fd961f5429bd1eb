"""`with xray(model) as x:` records what happens to the model inside the block."""

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from normscope._version import __version__
from normscope.checks import short_repr
from normscope.diagnostics.collect.modules import COMPILED, XrayObserver
from normscope.diagnostics.collect.norms import compare_running_stats
from normscope.diagnostics.collect.parameters import ParameterTracker
from normscope.diagnostics.collect.products import UnregisteredParameters
from normscope.diagnostics.collect.session import XraySession
from normscope.diagnostics.collect.wrappers import ParallelWrapper, compiled_classes
from normscope.diagnostics.findings import Finding, find
from normscope.diagnostics.hints import read_hints
from normscope.diagnostics.ranks.observer import RankActivity, RankObserver
from normscope.diagnostics.record import LossRecord, ModuleRecord, XrayRecord
from normscope.diagnostics.record_json import save_record
from normscope.diagnostics.stats.ranks import RanksRecord
from normscope.diagnostics.watchers.watcher import Watched
from normscope.diagnostics.watchers.watchers import Watchers
from normscope.errors import ConfigError
from normscope.storage.files import write_atomically
from normscope.tracing.sharded import original_class
from normscope.tracing.tracer import Tracer


class Xray:
    """Record statistics of a model: run forward, backward and optimizer steps inside the block.

    The model is left unchanged: its hooks are removed when the block ends, also after an error. Modes, parameters,
    gradients and random number generators are not touched. Only statistics of activations are kept.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> with Xray(model) as x:
    ...     model(torch.randn(16, 4)).square().mean().backward()
    >>> [module.name for module in x.record.ran]
    ['', '0', '1', '2']
    >>> x.record["1"].output.min
    0.0

    Args:
        model: any torch module.
        label: a label for the record, such as the training step.
        submodules: record all submodules. If False, record the model as a whole and its parameters, as a model compiled
            into one graph requires. Names of modules: record only these, without functions and parameters, which takes
            a fraction of the time.
        compare_ranks: under torch.distributed, compare this rank with the others that take an x-ray at the same time.
            If no other does, the end of the block waits for a second.
        optimizer, loss, loader: hints, which are never required: the optimizers that should train the model, the loss
            module or function, and what yields the batches of an epoch. Findings can then say more.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        label: str = "",
        submodules: bool | Collection[str] = True,
        compare_ranks: bool = True,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        loss: Callable[..., Any] | None = None,
        loader: Iterable[Any] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"expected a torch module, but got {type(model).__name__}\n"
                f"fix: with xray(model): ..., and call the model inside the block"
            )
        self._model, self._label, self._submodules = model, label, submodules
        self._session = session = XraySession()
        self._wrapper = ParallelWrapper(model, session)
        inner = self._wrapper.inner
        self._unregistered = UnregisteredParameters(inner)
        self._observer = XrayObserver(inner, session, self._unregistered)
        self._tracer = Tracer(inner, self._observer)
        self._parameters = ParameterTracker(inner, session, self._unregistered, self._wrapper)
        hints = read_hints(optimizer, loss, loader)
        self._watchers = Watchers(Watched(inner, self._tracer.names, session, self._parameters, hints))
        self._ranks = RankObserver(session, self._parameters, self._wrapper) if compare_ranks else None
        self._stack: ExitStack | None = None
        self._record: XrayRecord | None = None

    def __enter__(self) -> Self:
        if self._stack is not None or self._record is not None:
            raise ConfigError("an x-ray cannot be entered twice\nfix: make a new one: with xray(model) as x: ...")
        with ExitStack() as stack:
            stack.callback(self._parameters.stop)
            stack.callback(self._session.stop)
            modules = self._modules()
            if self._submodules is False:
                self._session.notice("only the model as a whole was recorded, without its submodules")
            elif "torch._dynamo" in sys.modules:  # also for a compiled function that calls the model
                if _is_compiled(self._model):
                    self._session.notice(COMPILED)
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(self._tracer)
            hookable = [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]
            if len(hookable) < len(modules):
                self._session.notice("scripted and traced modules do not support hooks and were not recorded")
            self._tracer.watch_modules(hookable)
            if isinstance(self._submodules, bool):
                self._parameters.start()
                if self._ranks is not None:
                    self._ranks.start()
            if self._submodules is True:
                self._observer.watchers = self._watchers
                stack.callback(self._watchers.stop)
                self._watchers.start()
                self._tracer.watch_functions()
            self._session.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stack is not None
        stack, self._stack = self._stack, None
        stack.close()
        if error is not None:
            self._session.notice(f"the block was interrupted by {type(error).__name__}: the record is incomplete")
        self._record = self._finish(interrupted=error is not None)

    def _modules(self) -> list[nn.Module]:
        """The modules to record."""
        chosen = self._submodules
        if isinstance(chosen, bool):
            return list(self._tracer.names) if chosen else [self._tracer.model]
        if unknown := set(chosen).difference(self._tracer.names.values()):
            raise ConfigError(
                f"the model has no module {short_repr(min(unknown))}\nfix: names from model.named_modules()"
            )
        self._session.notice("only some modules were recorded, without functions and parameters")
        return [module for module, name in self._tracer.names.items() if name in chosen]

    @property
    def record(self) -> XrayRecord:
        """The record. It is available after the block, also if the block raised an error."""
        if self._record is None:
            raise ConfigError("the record is not available inside the block\nfix: read it after the with block")
        return self._record

    @property
    def findings(self) -> list[Finding]:
        """The findings, the most severe first."""
        return find(self.record)

    def __repr__(self) -> str:
        return f"<Xray of {type(self._tracer.model).__name__}{'' if self._record else ', not finished'}>"

    def __str__(self) -> str:
        """The findings and a summary, as `normscope xray` prints them; `show` prints the modules too."""
        if self._record is None:
            return repr(self)
        from normscope.diagnostics.report.terminal import render_text

        return render_text(self.record, self.findings, tree=False).rstrip("\n")

    def _repr_html_(self) -> str | None:
        """The report page, for notebooks; None, and so the plain repr, before the block has ended."""
        return None if self._record is None else self._record._repr_html_()

    def show(self, *, tree: bool = True) -> None:
        """Print the findings, and with `tree` the signal by depth and every module."""
        from normscope.diagnostics.report.terminal import print_record

        print_record(self.record, self.findings, tree=tree)

    def save(self, path: str | Path) -> None:
        """Save the record as .json, or a report page as .html, by the suffix of the path."""
        path = Path(path)
        if path.suffix == ".html":
            from normscope.diagnostics.report.page import xray_page

            write_atomically(path, xray_page(self.record, self.findings))
        elif path.suffix == ".json":
            save_record(self.record, path)
        else:
            kinds = "an x-ray is saved as .json or .html"
            raise ConfigError(f"unknown file type: {path.name}; {kinds}\nfix: {path.stem}.html")

    def _finish(self, *, interrupted: bool) -> XrayRecord:
        session, batches = self._session, self._observer.batches
        can_run = type(self._tracer.model).forward is not nn.Module.forward
        if batches and not session.batches and can_run and isinstance(self._submodules, bool):
            session.notice("only submodules were called: the one with the fewest calls sets the number of batches")
        if session.sampling.notice:
            session.notice(session.sampling.notice)
        by_name = {name: module for module, name in self._tracer.names.items()}
        finished = []
        for name, accumulator in list(session.accumulators.items()):
            if accumulator.is_function:
                continue
            module = by_name.get(name)
            if module is not None and accumulator.norm is not None:
                session.guarded(f"the running statistics of `{name}`", compare_running_stats, accumulator.norm, module)
            parameters = () if module is None else self._parameters.of(module, name)
            finished.append(accumulator.finish(batches, parameters))
            finished += [session.accumulators[own].finish(batches, ()) for own in session.functions.get(name, [])]
        model = original_class(self._tracer.model).__name__
        watched = self._watchers.finish()
        return XrayRecord(
            model=model,
            modules=tuple(finished),
            batches=batches,
            backward_passes=self._parameters.backward_passes,
            steps=tuple(self._parameters.steps),
            ranks=self._compare_ranks(model, finished, batches, watched.get("losses", ()), interrupted),
            notices=tuple(session.notices),
            normscope=__version__,
            torch=torch.__version__,
            label=self._label,
            interrupted=interrupted,
            skipped_steps=session.skipped_steps,
            foreign_optimizer_steps=self._parameters.foreign_optimizer_steps,
            steps_without_zero_grad=self._parameters.zero_grad.steps,
            unregistered_parameters=self._unregistered.finish(),
            **watched,
        )

    def _compare_ranks(
        self, model: str, modules: list[ModuleRecord], batches: int, losses: tuple[LossRecord, ...], interrupted: bool
    ) -> RanksRecord | None:
        if self._ranks is None:
            return None
        if interrupted:
            self._ranks.abandon()
            return None
        ran = [module for module in modules if not module.is_function and module.training is not None]
        done = RankActivity(
            label=self._label,
            model=model,
            batches=batches,
            backward_passes=self._parameters.backward_passes,
            training=ran[0].training if ran else None,
            loss=losses[-1].value if losses else None,
            modes={module.name: "train" if module.training else "eval" for module in ran},
        )
        return self._ranks.finish(done)


xray = Xray
"""Lowercase alias, for `with normscope.xray(model) as x:`."""


def _is_compiled(model: nn.Module) -> bool:
    classes = compiled_classes()
    return any(isinstance(module, classes) or module._compiled_call_impl is not None for module in model.modules())
