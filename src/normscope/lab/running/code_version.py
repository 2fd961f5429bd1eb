"""What metrics depend on besides settings and seed: the measuring code and its libraries."""

import ast
import hashlib
import json
import os
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from normscope.errors import ConfigError

PACKAGE = Path(__file__).parents[2]
DATA = ("batches.py", "shuffle.py", "stories", "token_file.py", "tokenizers")
TRAINING = (
    *("config.py", "optimizers", "parallel", "running_statistics.py", "schedule.py", "trainer.py", "validation.py"),
)
SHARED_SOURCES = (
    *("checks.py", "scope", "ops", "blocks", "models", "runtime/rng.py", "lab/running/trial.py", "lab/trials"),
    *(f"data/{name}" for name in DATA),
    *(f"training/{name}" for name in TRAINING),
)
"""Code that any trial may use. When it changes, cached metrics are no longer valid."""
CLAIMS = "lab/claims"
"""Each file has its own measure function, on which only its own trials depend."""
LIBRARIES = ("torch", "numpy", "numba", "scikit-learn")


class CodeSnapshot:
    """The code of a process: loaded modules as they were when loaded, other files as of the snapshot.

    Files may be edited while the lab runs. Trials are looked up by the code that the lab started with, and workers
    report the code that they ran; if the two differ, the metrics must not be cached.

    Args:
        package: folder of the package.
    """

    def __init__(self, package: Path = PACKAGE) -> None:
        self._package = package
        self._shared = [name for source in SHARED_SOURCES for name in self._names(package / source)]
        self._code = {name: self._code_in(name) for name in (*self._shared, *self._names(package / CLAIMS))}
        self._loaded = self._modules()

    def digest(self, module: str) -> str:
        """Digest of the shared sources and of the module's own file."""
        own = "/".join(module.split(".")[1:]) + ".py"
        if own not in self._code:
            self._code[own] = self._code_in(own)
        return digest([[name, self._code[name]] for name in dict.fromkeys((*self._shared, own))])

    def note_loaded(self) -> None:
        """Register modules loaded since: their code is what their files contain now."""
        modules = self._modules()
        for name in modules - self._loaded:
            if name in self._code:
                self._code[name] = self._code_in(name)
        self._loaded = modules

    def _modules(self) -> set[str]:
        """Files of the package's loaded modules."""
        inside = f"{self._package.name}."
        modules = [module for name, module in [*sys.modules.items()] if name.startswith(inside)]
        files = [file for module in modules if (file := getattr(module, "__file__", None))]
        folder = f"{self._package}{os.sep}"  # strings: after every trial, hundreds of Path objects would take a while
        return {file.removeprefix(folder).replace(os.sep, "/") for file in files if file.startswith(folder)}

    def _names(self, path: Path) -> list[str]:
        return sorted(map(self._name, path.rglob("*.py") if path.is_dir() else [path]))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._package).as_posix()

    def _code_in(self, name: str) -> str:
        try:
            source = (self._package / name).read_text(encoding="utf-8")
        except OSError:
            return "missing"
        try:
            return digest(strip_prose(source))
        except SyntaxError:  # the file is being edited
            return digest(source)


@cache
def snapshot() -> CodeSnapshot:
    """The snapshot of this process, taken at the first call."""
    return CodeSnapshot()


def code_digest(module: str) -> str:
    """Digest of everything that this module's metrics depend on: code, kernel choice and library versions."""
    if module.partition(".")[0] != PACKAGE.name:
        raise ConfigError(f"a trial must run a measure of normscope, got {module!r}")
    return digest([snapshot().digest(module), os.environ.get("NORMSCOPE_KERNELS"), versions()])


@cache
def versions() -> dict[str, str]:
    """Library versions, without importing the libraries, which takes seconds that a cached run does not need."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


@cache
def processor() -> str:
    """The processor model, on which times depend."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    return " ".join([platform.machine(), *(sorted(models) or [platform.processor()])])


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def strip_prose(source: str) -> str:
    """Remove what does not affect metrics: comments, docstrings, and the EXPERIMENT of a claim.

    >>> strip_prose("WIDTH = 2  # small\\nEXPERIMENT = Experiment(variants, size, questions, charts)")
    'WIDTH = 2'
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            node.body = [one for one in node.body if not _is_prose(one)] or [ast.Pass()]
    return ast.unparse(tree)


def _is_prose(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "EXPERIMENT" for target in node.targets)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
