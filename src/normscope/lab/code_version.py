"""What figures depend on beside settings and chance: the code that measures, and the libraries below it."""

import ast
import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from normscope.errors import ConfigError

PACKAGE = Path(__file__).parents[1]
SHARED_SOURCES = (
    "checks.py",
    "scope",
    "ops",
    "blocks",
    "models",
    "data/batches.py",
    "data/shuffle.py",
    "data/stories",
    "data/token_file.py",
    "data/tokenizers",
    "runtime/rng.py",
    "training/config.py",
    "training/validation.py",
    "training/optimizers",
    "training/schedule.py",
    "training/running_statistics.py",
    "training/trainer.py",
    "lab/trial_values.py",
    "lab/trial.py",
    "lab/trials",
)
"""What every trial may be made of. When its code changes, figures of before are not taken for those of now."""
CLAIMS = "lab/claims"
"""Each file has a measure of its own, on which only its own trials depend."""
LIBRARIES = ("torch", "numpy", "numba", "scikit-learn")


class CodeSnapshot:
    """The code of a process: what it has loaded, as it was then, and the rest as it was when the snapshot was taken.

    Files may be edited while the lab runs. Trials are looked up by the code that the lab began with, and whoever runs
    one tells the code that it ran; where the two differ, the figures must not be kept.

    Args:
        package: the folder that the modules are in.
    """

    def __init__(self, package: Path = PACKAGE) -> None:
        self._package = package
        self._rooms = [self._name(path) for room in SHARED_SOURCES for path in sorted(_files(package / room))]
        claims = [self._name(path) for path in _files(package / CLAIMS)]
        self._code = {name: self._code_in(name) for name in (*self._rooms, *claims)}
        self._loaded = self._modules()

    def digest(self, module: str) -> str:
        """Of the rooms, and of the module's own file."""
        own = "/".join(module.split(".")[1:]) + ".py"
        if own not in self._code:
            self._code[own] = self._code_in(own)
        return digest([[name, self._code[name]] for name in dict.fromkeys((*self._rooms, own))])

    def note_loaded(self) -> None:
        """See what has been loaded since: from now on the code of these files is what they have in them now."""
        modules = self._modules()
        for name in modules - self._loaded:
            if name in self._code:
                self._code[name] = self._code_in(name)
        self._loaded = modules

    def _modules(self) -> set[str]:
        """The files of the package's modules that are loaded."""
        inside = f"{self._package.name}."
        found = [
            getattr(module, "__file__", None) for name, module in [*sys.modules.items()] if name.startswith(inside)
        ]
        return {self._name(Path(file)) for file in found if file and Path(file).is_relative_to(self._package)}

    def _name(self, path: Path) -> str:
        return path.relative_to(self._package).as_posix()

    def _code_in(self, name: str) -> str:
        try:
            source = (self._package / name).read_text(encoding="utf-8")
        except OSError:
            return "not there"
        try:
            return digest(strip_prose(source))
        except SyntaxError:  # somebody is in the middle of writing it
            return digest(source)


@cache
def snapshot() -> CodeSnapshot:
    """This process's, taken when it is first asked for."""
    return CodeSnapshot()


def code_digest(module: str) -> str:
    """A digest of all that this module's figures depend on: code, which kernels run, and what it is built on."""
    if module.partition(".")[0] != PACKAGE.name:
        raise ConfigError(f"a trial runs a measure of normscope, but got {module!r}")
    return digest([snapshot().digest(module), os.environ.get("NORMSCOPE_KERNELS"), versions()])


@cache
def versions() -> dict[str, str]:
    """Of the libraries, without loading them, which takes seconds that a cached run does not need."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


@cache
def processor() -> str:
    """The kind of processor, by which times differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    return " ".join([platform.machine(), *(sorted(models) or [platform.processor()])])


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def strip_prose(source: str) -> str:
    """Code without what only says things: comments, docstrings, and the CLAIM of a claim's file.

    >>> strip_prose("LINE = 2  # half\\nCLAIM = Claim('as it is said')")
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


def _files(place: Path) -> Iterable[Path]:
    return place.rglob("*.py") if place.is_dir() else [place]
