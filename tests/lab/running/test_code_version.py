"""A key follows the code that figures come from, and nothing else; and a process knows which code it runs."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from normscope.lab.running.code_version import (
    CLAIMS,
    PACKAGE,
    SHARED_SOURCES,
    CodeSnapshot,
    code_digest,
    processor,
    versions,
)

OWN = "demo.lab.claims.one"
CODE = '"""What it is for."""\n\n\ndef size() -> int:\n    """So much."""\n    return len("ab")  # two\n'
NO_FIGURES = (
    "__init__.py",
    "_version.py",
    "errors.py",
    "storage/",
    "runtime/devices.py",
    "runtime/memory.py",
    "runtime/precision.py",
    "render/",
    "runs/",
    "lab/report/",
    "lab/running/code_version.py",
)
NO_FIGURES_OF_A_TRIAL = (
    *(f"lab/{name}.py" for name in ("__init__", "budget", "catalog", "charts", "claim", "toolkit")),
    "lab/results/",
    "lab/running/__init__.py",
    "lab/running/tuning.py",
)
"""What claims are written in, and read by when all trials are done."""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of one small file for each room, two claims, and what trials have nothing to do with."""
    package = tmp_path / "demo"
    for name in (*map(file_in, SHARED_SOURCES), f"{CLAIMS}/one.py", f"{CLAIMS}/two.py", "training/observers/live.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(CODE)
    return package


def file_in(room: str) -> str:
    return room if room.endswith(".py") else f"{room}/deep/down.py"


@pytest.mark.parametrize("room", SHARED_SOURCES)
def test_a_change_in_a_room_is_another_digest_for_all(package: Path, room: str) -> None:
    before = CodeSnapshot(package)
    (package / file_in(room)).write_text(CODE.replace('"ab"', '"abc"'))
    after = CodeSnapshot(package)
    for claim in ("one", "two"):
        assert before.digest(f"demo.lab.claims.{claim}") != after.digest(f"demo.lab.claims.{claim}")


def test_a_claims_file_counts_for_its_own_trials_only(package: Path) -> None:
    before = CodeSnapshot(package)
    (package / CLAIMS / "two.py").write_text(CODE.replace("len", "sum"))
    after = CodeSnapshot(package)
    assert before.digest(OWN) == after.digest(OWN)
    assert before.digest("demo.lab.claims.two") != after.digest("demo.lab.claims.two")


@pytest.mark.parametrize("file", [file_in("ops"), f"{CLAIMS}/one.py"])
def test_comments_docstrings_and_what_is_only_shown_change_no_digest(package: Path, file: str) -> None:
    before = CodeSnapshot(package).digest(OWN)
    (package / file).write_text(CODE.replace("# two", "# both").replace("So much.", "More.").replace("What", "Why"))
    (package / "training/observers/live.py").write_text("other = 1")
    assert CodeSnapshot(package).digest(OWN) == before


def test_a_new_file_and_a_file_that_is_gone_change_the_digest(package: Path) -> None:
    digests = [CodeSnapshot(package).digest(OWN)]
    (package / "ops/new.py").write_text(CODE)
    digests.append(CodeSnapshot(package).digest(OWN))
    (package / file_in("scope")).unlink()
    digests.append(CodeSnapshot(package).digest(OWN))
    (package / file_in("blocks")).write_text("def half(")  # somebody is writing it at this moment
    digests.append(CodeSnapshot(package).digest(OWN))
    assert len({*digests}) == 4


def test_code_that_was_edited_before_it_was_loaded_is_other_code_for_good(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    began = CodeSnapshot(package)
    known = began.digest(OWN)
    path = package / CLAIMS / "one.py"
    path.write_text(CODE.replace('"ab"', '"abc"'))
    try:
        assert importlib.import_module(OWN).size() == 3
        began.note_loaded()
        assert began.digest(OWN) != known
        path.write_text(CODE)
        began.note_loaded()
        assert began.digest(OWN) != known  # what is loaded stays loaded
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "demo"]:
            del sys.modules[name]


def test_code_that_is_edited_after_it_was_loaded_is_still_what_it_was(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    began = CodeSnapshot(package)
    known = began.digest(OWN)
    try:
        importlib.import_module(OWN)
        began.note_loaded()
        (package / CLAIMS / "one.py").write_text(CODE.replace('"ab"', '"abc"'))
        began.note_loaded()
        assert began.digest(OWN) == known
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "demo"]:
            del sys.modules[name]


def test_all_that_trials_load_is_in_the_digest() -> None:
    """Text, pictures and all claims, in a process that has loaded nothing else."""
    code = """
import sys
from normscope.lab.catalog import all_claims
from normscope.lab.running.trial import LabTrial, run_trial
from normscope.lab.trials.text import SMALL_GPT
all_claims()
tiny = {**SMALL_GPT, "model": {**SMALL_GPT["model"], "depth": 1, "width": 16}, "steps": 2, "batch": 2}
run_trial(LabTrial("normscope.lab.trials.text:train_text", tiny, 0))
pictures = {"model": {"kind": "convnet"}, "optimizer": "sgd", "lr": 0.1, "batch": 4, "steps": 2}
run_trial(LabTrial("normscope.lab.trials.images:train_images", pictures, 0))
print(*(module.__file__ for name, module in sys.modules.items() if name.startswith("normscope")), sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    loaded = [Path(line).relative_to(PACKAGE).as_posix() for line in done.stdout.split()]
    assert "ops/dispatch.py" in loaded
    rooms = tuple(room if room.endswith(".py") else f"{room}/" for room in (*SHARED_SOURCES, CLAIMS))
    # The first lines of a folder of which only some files are rooms.
    without = tuple(f"{room.partition('/')[0]}/__init__.py" for room in SHARED_SOURCES if "/" in room)
    strange = [file for file in loaded if not file.startswith((*rooms, *NO_FIGURES, *NO_FIGURES_OF_A_TRIAL, *without))]
    assert not strange


def test_no_claim_uses_the_code_of_another() -> None:
    for path in (PACKAGE / CLAIMS).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and str(node.module).startswith("normscope.lab.claims")), path


def test_libraries_and_the_processor_are_named() -> None:
    import numpy as np
    import torch

    assert versions()["torch"] == torch.__version__
    assert versions()["numpy"] == np.__version__
    assert {"numba", "scikit-learn"} <= versions().keys()
    assert processor().strip()


def test_other_kernels_give_other_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "normscope.lab.trials.text"
    monkeypatch.delenv("NORMSCOPE_KERNELS", raising=False)
    fused = code_digest(module)
    monkeypatch.setenv("NORMSCOPE_KERNELS", "reference")
    assert code_digest(module) != fused
