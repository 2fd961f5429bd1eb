"""Imports go one way, and the package starts without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import normscope

SOURCE = Path(normscope.__file__).parent

# Each package may import packages of lower levels, and itself. A module with a level of its own overrides its package.
LEVELS = {
    "_version": 0,
    "errors": 0,
    "checks": 1,
    "messages": 1,
    "scope": 1,
    "storage": 2,
    "runtime": 2,
    "render": 1,
    "ops": 3,
    "blocks": 4,
    "tracing": 4,  # tracing, diagnostics and drawing take any torch module: nothing of our models
    "diagnostics": 5,
    "fusing": 5,
    "models": 5,
    "drawing": 6,
    "integrations": 6,
    "learning": 6,
    "data": 6,
    "generate": 7,
    "interop": 7,
    "training.config": 7,  # what a run folder stores of its training
    "comparing": 8,
    "runs": 8,
    "training": 9,
    "inspection": 10,
    "exporting": 10,
    "planning": 10,
    "lab": 10,
    "studio": 11,
    "cli": 12,
    "__main__": 13,
}


def level_of(module: str) -> int | None:
    """The level of `normscope.blocks.mlp`; None for modules of other packages."""
    parts = module.split(".")
    if parts[0] != "normscope" or len(parts) == 1:
        return None
    return LEVELS.get(".".join(parts[1:3]), LEVELS[parts[1]])


def imported_modules(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports by a relative name; write the full one"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def forbidden_imports(path: Path) -> list[str]:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts == ("__init__",):
        return []  # the front door, which exports from every package
    own, found = LEVELS[parts[0]], []
    for module in imported_modules(path):
        level = level_of(module)
        if level is not None and module.split(".")[1] != parts[0] and level >= own:
            found.append(f"{'.'.join(parts)} must not import {module}")
    return found


def test_a_package_imports_only_from_lower_levels() -> None:
    paths = sorted(SOURCE.rglob("*.py"))
    assert len(paths) > 100
    assert [text for path in paths for text in forbidden_imports(path)] == []


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def test_importing_the_package_and_its_notation_does_not_load_torch() -> None:
    code = "import sys, normscope; normscope.Scope.parse('n [c h w]').bind((2, 3, 4, 4)); print('torch' in sys.modules)"
    assert in_a_new_process(code).strip() == "False"


def test_a_layer_loads_torch_when_it_is_first_used() -> None:
    code = "import sys, normscope; normscope.LayerNorm(3); print('torch' in sys.modules)"
    assert in_a_new_process(code).strip() == "True"


def test_a_package_is_an_attribute_without_importing_it_first() -> None:
    code = "import normscope; print(normscope.errors.ShapeError.__name__, normscope.scope.Plan.__name__)"
    assert in_a_new_process(code).split() == ["ShapeError", "Plan"]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'BatchNorm4d'"):
        normscope.BatchNorm4d  # type: ignore[attr-defined]  # noqa: B018
