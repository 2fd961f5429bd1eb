"""Digests of the code that metrics depend on, and snapshots of the code of a process."""

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
NO_METRICS = (
    "__init__.py",
    "_version.py",
    "errors.py",
    "storage/",
    *(f"data/{name}.py" for name in ("corpus", "documents", "sources", "split")),  # of a run's files
    "runtime/devices.py",
    "runtime/memory.py",
    "runtime/precision.py",
    "runtime/ranks.py",  # a trial is one process
    "runtime/torchrun.py",
    "interop/",  # of a run that starts from another model
    "render/",
    "runs/",
    "lab/report/",
    "lab/running/code_version.py",
)
NO_METRICS_OF_A_TRIAL = (
    *(f"lab/{name}.py" for name in ("__init__", "catalog", "claim", "toolkit")),
    "lab/results/",
    "lab/running/__init__.py",
    "lab/running/tuning.py",
)
"""Declares claims and evaluates metrics; no influence on the metrics of a trial."""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a small file per shared source, two claims and an unrelated file."""
    package = tmp_path / "demo"
    for name in (*map(file_in, SHARED_SOURCES), f"{CLAIMS}/one.py", f"{CLAIMS}/two.py", "training/observers/live.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(CODE)
    return package


def file_in(source: str) -> str:
    return source if source.endswith(".py") else f"{source}/deep/down.py"


@pytest.mark.parametrize("source", SHARED_SOURCES)
def test_change_of_a_shared_source_changes_every_digest(package: Path, source: str) -> None:
    before = CodeSnapshot(package)
    (package / file_in(source)).write_text(CODE.replace('"ab"', '"abc"'))
    after = CodeSnapshot(package)
    for claim in ("one", "two"):
        assert before.digest(f"demo.lab.claims.{claim}") != after.digest(f"demo.lab.claims.{claim}")


def test_claim_file_changes_only_its_own_digest(package: Path) -> None:
    before = CodeSnapshot(package)
    (package / CLAIMS / "two.py").write_text(CODE.replace("len", "sum"))
    after = CodeSnapshot(package)
    assert before.digest(OWN) == after.digest(OWN)
    assert before.digest("demo.lab.claims.two") != after.digest("demo.lab.claims.two")


@pytest.mark.parametrize("file", [file_in("ops"), f"{CLAIMS}/one.py"])
def test_comments_docstrings_and_display_code_change_no_digest(package: Path, file: str) -> None:
    before = CodeSnapshot(package).digest(OWN)
    (package / file).write_text(CODE.replace("# two", "# both").replace("So much.", "More.").replace("What", "Why"))
    (package / "training/observers/live.py").write_text("other = 1")
    assert CodeSnapshot(package).digest(OWN) == before


def test_added_and_removed_files_change_the_digest(package: Path) -> None:
    digests = [CodeSnapshot(package).digest(OWN)]
    (package / "ops/new.py").write_text(CODE)
    digests.append(CodeSnapshot(package).digest(OWN))
    (package / file_in("scope")).unlink()
    digests.append(CodeSnapshot(package).digest(OWN))
    (package / file_in("blocks")).write_text("def half(")  # somebody is writing it at this moment
    digests.append(CodeSnapshot(package).digest(OWN))
    assert len({*digests}) == 4


def test_code_edited_before_loading_changes_the_digest_permanently(
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


def test_code_edited_after_loading_does_not_change_the_digest(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.exhaustive  # a new process that trains on text and images takes eight seconds
def test_digest_covers_everything_that_trials_import() -> None:
    """Text, images and all claims, in a new process."""
    code = """
import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
import numpy as np
# Images without scikit-learn, which takes seconds to import and has no part in this.
digits = SimpleNamespace(images=np.random.default_rng(0).random((1797, 8, 8)), target=np.arange(1797) % 10)
fake = SimpleNamespace(load_digits=lambda: digits, __spec__=ModuleSpec("sklearn", None))
sys.modules["sklearn"] = sys.modules["sklearn.datasets"] = fake
from normscope.lab.catalog import all_claims
from normscope.lab.running.trial import LabTrial, run_trial
from normscope.lab.trials.text import SMALL_GPT
all_claims()
tiny = {**SMALL_GPT, "model": {**SMALL_GPT["model"], "depth": 1, "width": 16}, "steps": 2, "batch": 2}
run_trial(LabTrial("normscope.lab.trials.text:train_text", tiny, 0))
images = {"model": {"kind": "convnet"}, "optimizer": "sgd", "lr": 0.1, "batch": 4, "steps": 2}
run_trial(LabTrial("normscope.lab.trials.images:train_images", images, 0))
print(*(module.__file__ for name, module in sys.modules.items() if name.startswith("normscope")), sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    loaded = [Path(line).relative_to(PACKAGE).as_posix() for line in done.stdout.split()]
    assert "ops/registry.py" in loaded
    sources = tuple(source if source.endswith(".py") else f"{source}/" for source in (*SHARED_SOURCES, CLAIMS))
    # The first lines of a folder of which only some files are sources.
    without = tuple(f"{source.partition('/')[0]}/__init__.py" for source in SHARED_SOURCES if "/" in source)
    strange = [
        file for file in loaded if not file.startswith((*sources, *NO_METRICS, *NO_METRICS_OF_A_TRIAL, *without))
    ]
    assert not strange


def test_claims_do_not_import_each_other() -> None:
    for path in (PACKAGE / CLAIMS).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and str(node.module).startswith("normscope.lab.claims")), path


def test_versions_and_processor_are_reported() -> None:
    import numpy as np
    import torch

    assert versions()["torch"] == torch.__version__
    assert versions()["numpy"] == np.__version__
    assert {"numba", "scikit-learn"} <= versions().keys()
    assert processor().strip()


def test_kernel_mode_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "normscope.lab.trials.text"
    monkeypatch.delenv("NORMSCOPE_KERNELS", raising=False)
    fused = code_digest(module)
    monkeypatch.setenv("NORMSCOPE_KERNELS", "reference")
    assert code_digest(module) != fused
