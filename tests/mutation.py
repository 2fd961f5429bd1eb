"""Mutation testing: change the core in one small way at a time, and check that the default tests notice.

    python -m tests.mutation [--count 120] [--seed 0] [--only src/normscope/scope/plan.py] [--report FILE]

A mutant is one changed operator, constant, condition or return value. It exists only in the memory of a forked process:
no file is edited, so tests that start subprocesses see the original code. A mutant survives if no test fails; each
survivor is either a missing test or an equivalent change.
"""

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "normscope"
SECONDS = 180
"""Limit of CPU time; wall time may be ten times as long."""

_NORM = ["blocks/norm/test_definition", "blocks/norm/test_parity", "blocks/norm/test_mask"]
CORE: dict[str, list[str]] = {
    "scope/grammar": ["scope"],
    "scope/plan": ["scope"],
    "scope/scope": ["scope"],
    "ops/norm/reference": ["ops/norm/test_reference", *_NORM, "blocks/norm/test_hard_inputs", "blocks/norm/test_sync"],
    "ops/norm/memory_layout": ["ops/norm/test_memory_layout", "ops/norm/test_channel_norm", *_NORM],
    "ops/norm/normalize": ["blocks/test_add_norm", "ops/norm", *_NORM, "ops/test_registry"],
    "ops/norm/row_norm": ["ops/norm/test_row_norm", "ops/test_transforms", "blocks/test_add_norm", *_NORM],
    "ops/norm/channel_norm": ["ops/norm/test_channel_norm", "ops/test_transforms", *_NORM],
    "ops/operation": ["ops/norm/test_row_norm", "ops/test_rotary_kernels", "ops/test_transforms"],
    "ops/registry": ["ops/test_registry", "blocks/test_add_norm", "ops/norm", *_NORM, "ops/test_rotary_kernels"],
    "ops/moments": ["ops/test_moments"],
    "blocks/norm/base": [*_NORM, "blocks/norm", "models/test_tools"],
    "blocks/attention": ["blocks/test_attention", "blocks/test_attention_cache", "blocks/test_attention_padding"],
    "blocks/rotary": ["blocks/test_rotary", "ops/test_rotary", "models/test_gpt_cache"],
    "blocks/cache": ["blocks/test_cache", "blocks/test_cache_rows", "models/test_gpt_cache", "models/test_gpt_rows"],
    "blocks/residual": ["blocks/test_wirings", "blocks/test_block", "blocks/test_add_norm"],
    "data/batches": ["data/test_batches", "training/test_trainer"],
    "data/shuffle": ["data/test_shuffle", "data/test_batches"],
    "data/split": ["data/test_split", "data/test_prepare"],
    "runs/checksummed_folder": ["runs/test_checksummed_folder", "runs/test_checkpoints"],
    "runs/checkpoints": ["runs/test_checkpoints", "training/test_loop"],
    "training/trainer": ["training/test_trainer", "training/test_loop"],
    "training/schedule": ["training/test_schedule", "training/test_trainer"],
    "generate/sampling": ["generate/test_sampling", "generate/test_tokens"],
    "lab/results/statistics": [
        "lab/results/test_statistics",
        "lab/results/test_verdict",
        "lab/running/test_run_claims",
    ],
    "diagnostics/stats/tensors": ["diagnostics/test_figures", "diagnostics/test_calibration"],
}
"""Files to mutate and the tests of each, fastest to fail first."""

_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One changed expression: the text between offsets `start` and `end`, before and after."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def applied(self, text: str) -> str:
        return text[: self.start] + self.after + text[self.end :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


def mutants_of(path: Path) -> list[Mutant]:
    """Every mutant of a file."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def offset(line: int, byte: int) -> int:
        row = text[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(row.encode()[:byte].decode())

    found = []
    for node, changed in _changes(ast.parse(text)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
        name = path.relative_to(ROOT).as_posix()
        found.append(Mutant(name, node.lineno, start, end, text[start:end], f"({ast.unparse(changed)})"))
    return found


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pairs of an expression and its replacement; types, strings and decorators are skipped."""
    skipped = {id(inner) for node in ast.walk(tree) for outer in _not_mutated(node) for inner in ast.walk(outer)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in _SWAPS:
                yield node, ast.Compare(node.left, [_SWAPS[type(operator)]()], node.comparators)
            case ast.BinOp(op=operator) if type(operator) in _SWAPS:
                yield node, ast.BinOp(node.left, _SWAPS[type(operator)](), node.right)
            case ast.BoolOp(op=operator):
                yield node, ast.BoolOp(_SWAPS[type(operator)](), node.values)
            case ast.UnaryOp(op=ast.Not()):
                yield node, node.operand
            case ast.Constant(value=bool(value)):
                yield node, ast.Constant(not value)
            case ast.Constant(value=int(number) | float(number)):
                yield node, ast.Constant(number + 1)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield test, ast.UnaryOp(ast.Not(), test)
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield value, ast.Constant(None)


def _not_mutated(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a node that never run, or only format an error message."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from node.decorator_list
            yield from filter(None, [node.returns])
        case ast.ClassDef():
            yield from node.decorator_list
        case ast.arg(annotation=ast.expr() as annotation) | ast.AnnAssign(annotation=ast.expr() as annotation):
            yield annotation
        case ast.Assign(value=ast.Subscript() | ast.BinOp(op=ast.BitOr()) as value):  # a type alias
            yield value
        case ast.JoinedStr() | ast.Raise() | ast.Assert():
            yield node


class _MutantImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a string instead of its file."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self.name, self.path, self.text = name, path, text

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def exec_module(self, module: Any) -> None:
        exec(compile(self.text, str(self.path), "exec"), module.__dict__)


def killed_by(mutant: Mutant, tests: list[str], folder: str) -> str | None:
    """The first test that fails on the mutant, or "timeout"; None if it survives."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            outcome = _failure(mutant, [*tests, f"--basetemp={folder}/tmp"])
        except BaseException as error:  # raised by this file; pytest reports test failures
            outcome = f"error: {error!r}"
        os.write(write, outcome.encode()[:4000])
        os._exit(0)
    os.close(write)
    deadline = time.monotonic() + 10 * SECONDS
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)
            return "timeout"
        time.sleep(0.02)
    with os.fdopen(read, "rb") as pipe:
        outcome = pipe.read().decode()
    if outcome.startswith("error: "):
        raise RuntimeError(outcome)
    return {"": "crash", "survived": None}.get(outcome, outcome)


def _failure(mutant: Mutant, tests: list[str]) -> str:
    """Run the tests on the mutant in this process until the first failure."""
    import pytest

    path = ROOT / mutant.file
    name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    importer = _MutantImporter(name, path, mutant.applied(path.read_text(encoding="utf-8")))

    class Watch:
        failed = ""

        def pytest_plugin_registered(self) -> None:
            """Stay ahead of pytest's importer, which would load the file."""
            if importer in sys.meta_path:
                sys.meta_path.remove(importer)
            sys.meta_path.insert(0, importer)

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                self.failed = self.failed or report.nodeid

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:
                self.failed = self.failed or f"import of {report.nodeid}"

    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    watch = Watch()
    options = ["-x", "-q", "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # about modules that are already loaded
    code = pytest.main([*options, "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins=[watch])
    loaded = sys.modules.get(name)  # None if it can no longer be imported
    assert loaded is None or isinstance(loaded.__loader__, _MutantImporter), f"{name} was loaded without the change"
    return "survived" if code == 0 else watch.failed or f"pytest ended with {code}"


def tests_of(file: str) -> list[str]:
    """Tests of a core file, and its doctests."""
    names = CORE[file.removeprefix("src/normscope/").removesuffix(".py")]
    paths = [ROOT / "tests" / name for name in names]
    return [str(path if path.is_dir() else path.with_suffix(".py")) for path in paths] + [str(ROOT / file)]


def sample_mutants(count: int, seed: int, only: list[str]) -> list[Mutant]:
    """A random sample, spread evenly over the files."""
    files = [f"src/normscope/{name}.py" for name in CORE]
    pools = [mutants_of(ROOT / file) for file in files if not only or file in only]
    for pool in pools:
        random.Random(seed).shuffle(pool)
    rounds = (pool[i] for i in range(max(map(len, pools))) for pool in pools if i < len(pool))
    return [mutant for _, mutant in zip(range(count), rounds, strict=False)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="files, as src/normscope/scope/plan.py")
    parser.add_argument("--report", type=Path, help="write all results to this file as JSON")
    parser.add_argument("--again", type=Path, help="only the survivors in this report")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    # Slow to import: do it once, before forking.
    import transformers  # noqa: F401

    assert not any(name.partition(".")[0] == "normscope" for name in sys.modules)  # each child imports it
    if given.again:
        results = json.loads(given.again.read_text())
        sample = [Mutant(**row["mutant"]) for row in results if row["killed_by"] is None]
    else:
        sample = sample_mutants(given.count, given.seed, given.only)
    rows = []
    for i, mutant in enumerate(sample, start=1):
        with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
            found = killed_by(mutant, tests_of(mutant.file), folder)
        rows.append({"mutant": asdict(mutant), "killed_by": found})
        print(f"[{i}/{len(sample)}] {'SURVIVED' if found is None else 'killed':8} {mutant}", flush=True)
        if given.report:
            given.report.write_text(json.dumps(rows, indent=1))
    killed = sum(row["killed_by"] is not None for row in rows)
    print(f"{killed} of {len(rows)} mutants were killed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
