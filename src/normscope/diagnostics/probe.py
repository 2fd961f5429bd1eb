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
from normscope.diagnostics.collect.functions import FunctionWatch
from normscope.diagnostics.collect.modules import COMPILED, ModuleWatch
from normscope.diagnostics.collect.norms import compare_memory
from normscope.diagnostics.collect.parameters import ParameterWatch
from normscope.diagnostics.collect.session import Scene
from normscope.diagnostics.collect.unregistered_parameters import Strangers
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
        self._scene = Scene()
        self._modules = ModuleWatch(_inner(model, self._scene), self._scene)
        self._strangers = Strangers(_inner(model, self._scene))
        self._parameters = ParameterWatch(_inner(model, self._scene), self._scene, self._strangers)
        self._stack: ExitStack | None = None
        self._record: XrayRecord | None = None

    def __enter__(self) -> Self:
        if self._stack is not None or self._record is not None:
            raise ConfigError("an x-ray is taken once\nfix: make another one: with xray(model) as x: ...")
        with ExitStack() as stack:
            stack.callback(self._stop)
            if not self._inside:
                self._scene.notice("the model was looked at from outside, as a whole")
            elif "torch._dynamo" in sys.modules:  # also for a compiled function that calls the model
                if _is_compiled(self._model):
                    self._scene.notice(COMPILED)
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            self._modules.start(self._inside)
            self._parameters.start()
            if self._inside:
                stack.enter_context(FunctionWatch(self._scene, self._strangers))
            self._scene.looking = True
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stack is not None
        stack, self._stack = self._stack, None
        stack.close()
        if error is not None:
            self._scene.notice(f"the block ended with {type(error).__name__}: what would have come after was not seen")
        self._record = dataclasses.replace(self._finish(), interrupted=error is not None)

    def _stop(self) -> None:
        self._scene.stop()
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
        scene, names, batches = self._scene, self._modules.names, self._modules.batches
        if batches and not scene.batches:
            scene.notice(
                "only parts of the model were called: a batch is a call of the one that was called least often"
            )
        by_name = {name: module for module, name in names.items()}
        finished = []
        for name, tally in list(scene.tallies.items()):
            if tally.is_function:
                continue
            module = by_name.get(name)
            if module is not None and tally.norm is not None:
                scene.look(f"the memory of `{name}`", compare_memory, tally.norm, module)
            parameters = () if module is None else self._parameters.of(module, name)
            finished.append(tally.finish(batches, parameters))
            finished += [scene.tallies[own].finish(batches, ()) for own in scene.functions.get(name, [])]
        return XrayRecord(
            model=type(_inner(self._model, scene)).__name__,
            modules=tuple(finished),
            batches=batches,
            backward_passes=self._parameters.backwards,
            steps=tuple(self._parameters.steps),
            losses=tuple(scene.losses),
            notices=tuple(scene.notices),
            normscope=__version__,
            torch=torch.__version__,
            label=self._label,
            skipped_steps=scene.skipped_steps,
            foreign_optimizer_steps=self._parameters.strange_steps,
            steps_without_zero_grad=self._parameters.piling.steps,
            unregistered_parameters=self._strangers.finish(),
        )


xray = Xray
"""As people write it: `with normscope.xray(model) as x:`."""


def _inner(model: nn.Module, scene: Scene) -> nn.Module:
    """The model inside of what torch has wrapped it in."""
    while True:
        if isinstance(model, _compiled_kinds()):
            model = model._orig_mod
        elif isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            scene.notice(f"{type(model).__name__}: the figures are those of this process's share of the batch")
            model = model.module
        else:
            return model


def _compiled_kinds() -> Any:
    """What torch.compile makes of a module; nothing as long as its compiler, which takes a second, is not loaded."""
    return torch._dynamo.OptimizedModule if "torch._dynamo" in sys.modules else ()


def _is_compiled(model: nn.Module) -> bool:
    kinds = _compiled_kinds()
    return any(isinstance(module, kinds) or module._compiled_call_impl is not None for module in model.modules())
