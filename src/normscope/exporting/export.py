"""Export the model of a run: a table of the formats, and one function that writes, proves and only then says "done"."""

import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from normscope.checks import as_path, short_repr
from normscope.comparing.runtimes import RuntimeMissingError
from normscope.errors import ConfigError, FileError
from normscope.exporting import plans
from normscope.exporting.gguf.write import WEIGHTS as GGUF_WEIGHTS
from normscope.exporting.gguf.write import check_gguf, write_gguf
from normscope.exporting.html import check_html, write_html
from normscope.exporting.huggingface.write import check_huggingface, write_huggingface
from normscope.exporting.model_source import ModelSource, read_source
from normscope.exporting.nanogpt import check_nanogpt, write_nanogpt
from normscope.exporting.onnx.write import check_onnx, write_onnx
from normscope.exporting.peft import check_peft, write_adapter
from normscope.exporting.proof import Proof, ProofPlan, Write, prove
from normscope.exporting.safetensors_folder import WEIGHTS as DTYPES
from normscope.exporting.safetensors_folder import check_safetensors, write_safetensors
from normscope.runs.run import Run
from normscope.storage.files import write_errors

MARKER = "normscope-export.txt"
"""The file in an exported folder that says what it is and how it was proved."""

ProofChoice = Literal["auto", "require", "skip"]


@dataclass(frozen=True)
class ExportFormat:
    """A format of `normscope export`.

    Args:
        suffix: End of the default name.
        weights: Weight formats, the default first.
        check: Raises an error, before anything is written, if the format cannot represent a model.
        write: (source, weights, path) -> writes the file, or into an empty folder.
        plan: How an export is proved.
        usage: What to do with an export.
        is_folder: Whether the export is a folder.
    """

    suffix: str
    weights: tuple[str, ...]
    check: Callable[[ModelSource], None]
    write: Write
    plan: ProofPlan
    usage: str
    is_folder: bool = True


FORMATS: Mapping[str, ExportFormat] = {
    "html": ExportFormat(
        suffix=".html",
        weights=("int8", "float32"),
        check=check_html,
        write=write_html,
        plan=plans.HTML,
        usage="open it in a browser",
        is_folder=False,
    ),
    "hf": ExportFormat(
        suffix="-hf",
        weights=DTYPES,
        check=check_huggingface,
        write=write_huggingface,
        plan=plans.HUGGING_FACE,
        usage="load it with AutoModelForCausalLM.from_pretrained and AutoTokenizer.from_pretrained",
    ),
    "gguf": ExportFormat(
        suffix=".gguf",
        weights=GGUF_WEIGHTS,
        check=check_gguf,
        write=write_gguf,
        plan=plans.GGUF,
        usage="run it with llama-server -m or llama-cli -m",
        is_folder=False,
    ),
    "onnx": ExportFormat(
        suffix="-onnx",
        weights=("float32",),
        check=check_onnx,
        write=write_onnx,
        plan=plans.ONNX,
        usage="open its model.onnx with onnxruntime.InferenceSession",
    ),
    "safetensors": ExportFormat(
        suffix="-safetensors",
        weights=DTYPES,
        check=check_safetensors,
        write=write_safetensors,
        plan=plans.SAFETENSORS,
        usage="read it with safetensors.torch.load_file",
    ),
    "peft": ExportFormat(
        suffix="-peft",
        weights=("float32",),
        check=check_peft,
        write=write_adapter,
        plan=plans.PEFT,
        usage="load it with peft.PeftModel.from_pretrained(base_model, FOLDER)",
    ),
    "nanogpt": ExportFormat(
        suffix="-nanogpt",
        weights=("float32",),
        check=check_nanogpt,
        write=write_nanogpt,
        plan=plans.NANOGPT,
        usage="sample with python sample.py --out_dir=FOLDER; meta.pkl belongs in nanoGPT's data/NAME",
    ),
}


@dataclass(frozen=True)
class Exported(os.PathLike[str]):
    """An export; wherever a path is expected, its path.

    Args:
        path: The file or folder.
        proof: How it was proved; None if it was not.
        unproved: Why it was not proved; empty if it was.
    """

    path: Path
    proof: Proof | None
    unproved: str = ""

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(one.stat().st_size for one in (self.path, *self.path.rglob("*")) if one.is_file())


class ExportError(ConfigError):
    """An export that does not compute what the model does.

    Attributes:
        proof: What differs.
        path: Where the files are, under a name that says that they failed.
    """

    def __init__(self, proof: Proof, path: Path) -> None:
        super().__init__(f"{proof}\nfix: do not use {path}; report it as a bug with this message")
        self.proof, self.path = proof, path


def export(
    run: Run | str | Path,
    to: str = "html",
    *,
    weights: str | None = None,
    out: str | Path | None = None,
    checkpoint: str | int = "best",
    proof: ProofChoice = "auto",
) -> Exported:
    """Export the model of a run, like `normscope export`.

    The export is written under a temporary name, loaded in the target's own runtime and compared with the model. Only
    then it gets its name. If it differs, it gets the name with ".failed" and an error says what differs.

    Args:
        run: The run, or its folder.
        to: Format: html, hf, gguf, onnx, safetensors, nanogpt, or peft for the adapters of a run with LoRA.
        weights: Weight format; by default the first that the format lists.
        out: The file or folder; by default beside the run's files, with the name of the run.
        checkpoint: "best", "last", or a saved step.
        proof: "auto" proves if the runtime is installed, "require" raises an error if it isn't, "skip" does not prove.
    """
    export_format = FORMATS.get(to) if isinstance(to, str) else None
    if export_format is None:
        raise ConfigError(f"unknown format to={short_repr(to)}\nfix: use one of {', '.join(FORMATS)}")
    weights = export_format.weights[0] if weights is None else weights
    if weights not in export_format.weights:
        known = ", ".join(export_format.weights)
        raise ConfigError(f"{to} does not support weights={short_repr(weights)}\nfix: use one of {known}")
    if proof not in get_args(ProofChoice):
        raise ConfigError(f"proof={short_repr(proof)}: choose one of {', '.join(get_args(ProofChoice))}")
    opened = run if isinstance(run, Run) else Run.open(run)
    name = f"{opened.folder.resolve().name}{export_format.suffix}"
    if out is None:
        opened.safe_folder.has(name)  # refuses a link that somebody else's run folder may contain
    path = opened.folder / name if out is None else as_path(out, "an export").resolve()
    _check_target(path, export_format)
    source = read_source(opened, checkpoint)
    export_format.check(source)
    return export_source(source, to, path, weights, proof)


def export_source(source: ModelSource, to: str, path: Path, weights: str, proof: ProofChoice) -> Exported:
    """Write, prove and rename an export that the format can represent; arguments as in `export`."""
    export_format = FORMATS[to]
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")

    def write(source: ModelSource, weights: str, path: Path) -> None:
        if export_format.is_folder:
            path.mkdir()
        export_format.write(source, weights, path)

    try:
        with write_errors(path):
            write(source, weights, part)
        found, reason = None, "the proof was skipped"
        if proof != "skip":
            try:
                found = prove(source, weights, part, export_format.plan, write)
            except RuntimeMissingError as error:
                if proof == "require":
                    raise
                reason = str(error)
        failed, failed_path = found is not None and not found.succeeded, path.with_name(f"{path.name}.failed")
        target = failed_path if failed else path
        with write_errors(target):
            if export_format.is_folder:
                text = f"normscope export --to {to} --weights {weights}\n{found or f'not proved: {reason}'}\n"
                (part / MARKER).write_text(text, encoding="utf-8")
            _replace(part, target)
    finally:
        _remove(part)
    if found is not None and failed:
        raise ExportError(found, target)
    if (failed_path / MARKER if export_format.is_folder else failed_path).is_file():  # of an earlier export
        _remove(failed_path)
    return Exported(path, found, "" if found else reason)


def _check_target(path: Path, export_format: ExportFormat) -> None:
    """Raise if the export would replace something else: a folder is replaced only if it is an export."""
    problem = None
    if not path.parent.is_dir():
        problem = f"the folder {path.parent} does not exist\nfix: create it first"
    elif path.is_dir() and not export_format.is_folder:
        problem = "it is a folder\nfix: name a file in it"
    elif path.is_file() and export_format.is_folder:
        problem = "it is a file\nfix: choose another --out"
    elif path.is_dir() and any(path.iterdir()) and not (path / MARKER).is_file():
        problem = "it has files that are not of an export\nfix: choose another --out"
    if problem is not None:
        raise FileError(f"cannot write {path}: {problem}")


def _replace(part: Path, target: Path) -> None:
    """Give the export its name; an older one disappears."""
    old = part.with_name(f"{part.name}.old")
    if part.is_dir() and target.is_dir():
        os.replace(target, old)
    os.replace(part, target)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
