"""Imports go one way, and the package starts without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import normscope

SOURCE = Path(normscope.__file__).parent

# Each room may use those on lower floors, and its own.
FLOORS = {
    "_version": 0,
    "errors": 0,
    "checks": 1,
    "files": 1,
    "json_files": 2,
    "own_folder": 2,
    "memory": 1,
    "scope": 1,
    "display": 1,
    "runtime": 1,
    "kernels": 2,
    "blocks": 3,
    "xray": 3,  # any torch module: nothing of blocks or models
    "models": 4,
    "interop": 5,
    "explain": 5,
    "data": 5,
    "generate": 6,
    "train": 7,
    "lab": 8,
    "cli": 9,
    "__main__": 10,
}


def room_of(module: str) -> str | None:
    """`normscope.blocks.mlp` -> `blocks`; None for what is not of this package."""
    parts = module.split(".")
    return parts[1] if parts[0] == "normscope" and len(parts) > 1 else None


def imported_modules(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports by a relative name; write the full one"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_from_the_floors_below(path: Path) -> None:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts == ("__init__",):
        return  # the front door, which opens on every room
    room = parts[0]
    for module in imported_modules(path):
        other = room_of(module)
        if other is not None and other != room:
            assert FLOORS[other] < FLOORS[room], f"{room} must not import {module}"


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def test_importing_the_package_and_its_notation_does_not_load_torch() -> None:
    code = "import sys, normscope; normscope.Scope.parse('n [c h w]').bind((2, 3, 4, 4)); print('torch' in sys.modules)"
    assert in_a_new_process(code).strip() == "False"


def test_a_layer_loads_torch_when_it_is_first_used() -> None:
    code = "import sys, normscope; normscope.LayerNorm(3); print('torch' in sys.modules)"
    assert in_a_new_process(code).strip() == "True"


def test_every_public_name_is_there_for_people_and_for_type_checkers() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    typed = {
        alias.asname: node.module
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed.pop("xray") == "normscope.xray.probe"  # a room that can be called
    assert typed == normscope._HOME_OF
    for name in normscope.__all__:
        assert getattr(normscope, name) is not None


def test_a_room_can_be_named_without_importing_it_first() -> None:
    code = "import normscope; print(normscope.errors.ShapeError.__name__, normscope.scope.Plan.__name__)"
    assert in_a_new_process(code).split() == ["ShapeError", "Plan"]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'BatchNorm4d'"):
        normscope.BatchNorm4d  # noqa: B018
