"""A trial: one run of one variant with one seed. Its key names everything that its figures depend on."""

import ast
import hashlib
import importlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from normscope.errors import ConfigError
from normscope.lab.claim import Measure, Settings
from normscope.lab.figures import checked
from normscope.lab.trials.texts import texts_in

PACKAGE = Path(__file__).parents[1]
ROOMS = ("scope", "kernels", "blocks", "models", "data", "train", "lab/trials")
"""What trials are made of. When a line of it changes, figures of before are not taken for those of now."""


@dataclass(frozen=True)
class Trial:
    """What is to be run.

    Args:
        measure: the function, as `module:name`.
        settings: what it is told.
        seed: of chance.
        alone: nothing else may run at the same time, because it measures time.
    """

    measure: str
    settings: Settings
    seed: int
    alone: bool = False

    @property
    def key(self) -> str:
        """The same for the same figures: of the code, the settings, the seed and torch's version."""
        module = self.measure.partition(":")[0]
        return _digest([code_of(module), torch_version(), self.measure, self.settings, self.seed])


@dataclass(frozen=True)
class Done:
    """What a trial gave, and the seconds of a core that it took, however busy the machine was."""

    figures: Mapping[str, Any]
    seconds: float


def name_of(measure: Measure) -> str:
    """A function as `module:name`, by which another process finds it.

    >>> name_of(perform)
    'normscope.lab.trial:perform'
    """
    return f"{measure.__module__}:{measure.__qualname__}"


def perform(trial: Trial, texts: Path | None = None) -> Done:
    """Run it here and now, on one core: the figures must not depend on how many others run beside it."""
    import torch

    module, _, name = trial.measure.partition(":")
    measure = getattr(importlib.import_module(module), name)
    threads = torch.get_num_threads()
    start = time.process_time()
    try:
        torch.set_num_threads(1)
        torch.manual_seed(trial.seed)
        with texts_in(texts):
            figures = measure(trial.settings, trial.seed)
    finally:
        torch.set_num_threads(threads)
    return Done(checked(figures, trial.measure), time.process_time() - start)


@cache
def code_of(module: str) -> str:
    """A digest of the source that a measure's figures depend on: the rooms of `ROOMS`, and the measure's own file."""
    if module.partition(".")[0] != "normscope":
        raise ConfigError(f"a trial runs a measure of normscope, but got {module!r}")
    own = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return _digest([_rooms(), _without_words(own.read_text(encoding="utf-8"))])


@cache
def _rooms() -> str:
    files = [path for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))]
    return _digest([[str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")] for path in files])


def _without_words(source: str) -> str:
    """The code of a claim's file without what only says things: comments, docstrings and the CLAIM itself.

    >>> _without_words("LINE = 2  # half\\nCLAIM = Claim('as it is said')")
    'LINE = 2'
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            node.body = [one for one in node.body if not _only_says(one)] or [ast.Pass()]
    return ast.unparse(tree)


def _only_says(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "CLAIM" for target in node.targets)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def torch_version() -> str:
    """Without loading torch, which takes seconds that a cached run does not need."""
    from importlib.metadata import version

    return version("torch")


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
