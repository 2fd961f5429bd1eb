"""Find out what a SOURCE is (a run, a preset, or a checkpoint of another tool), and load it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from normscope.checks import as_path, did_you_mean, short_repr
from normscope.data.tokenizers import Tokenizer
from normscope.errors import ConfigError, FileError
from normscope.interop.checkpoint import ExternalCheckpoint, build_model
from normscope.interop.formats import CONFIG_NAME, FORMATS, Format
from normscope.models.gpt import GPT
from normscope.models.presets import PRESETS
from normscope.runs.run import Run
from normscope.storage.files import open_regular

SOURCE_KINDS = "a run folder, a Hugging Face folder, or a checkpoint of another tool"
ONNX_NAME = "model.onnx"
_LISTED = 4
"""Number of files of a folder that an error lists."""


@dataclass(frozen=True)
class Source:
    """What a SOURCE is.

    Args:
        kind: "run", "preset", or the name of a format.
        path: the file or folder; for a preset its name.
        read: reads a checkpoint of another tool; None for a run and a preset.
    """

    kind: str
    path: Path
    read: Callable[[Path], ExternalCheckpoint] | None = None


def find_source(source: str | Path, presets: Collection[str] = PRESETS.keys()) -> Source:
    """Recognize a source: a preset's name, a run folder, or a file or folder of another tool.

    Args:
        source: A name or path.
        presets: Names of presets; a file or folder of the same name comes first.

    Raises:
        FileError: there is no such file, its format is unknown, or it could be of two formats.
    """
    path = as_path(source, "a model")
    if str(path) in presets and not path.exists():
        return Source("preset", path)
    if not path.exists():
        names = f"a preset ({', '.join(presets)}), " if presets else ""
        hint = did_you_mean(path, presets, f"use {names}{SOURCE_KINDS}")
        raise FileError(f"no such model: {short_repr(str(path))} does not exist (nothing is downloaded)\nfix: {hint}")
    found = [one for one in FORMATS if one.recognizes(path)]
    if not found and (path / ONNX_NAME).is_file():
        raise FileError(
            f"{path} is an ONNX model, which only `normscope diff` runs\nfix: use the run that it is made from"
        )
    if not found and (path / CONFIG_NAME).exists():
        return Source("run", path)  # opening it reports what is wrong with it
    if not found:
        raise _unknown(path)
    if len(found) > 1:
        raise _ambiguous(path, found)
    return Source(found[0].name, path, found[0].read)


def read_source(source: Run | str | Path, checkpoint: str | int = "best") -> ExternalCheckpoint:
    """Read the checkpoint of a run, or of another tool.

    Args:
        source: A run, its folder, or a file or folder of another tool.
        checkpoint: Of a run: "best", "last", or a saved step.
    """
    if isinstance(source, Run):
        model, _ = source.load_model(checkpoint)
        return ExternalCheckpoint("run", source.folder, source.config.model, model.state_dict(), source.tokenizer())
    found = _find_weights(source)
    if found.read is None:
        return read_source(Run.open(found.path), checkpoint)
    if checkpoint != "best":
        raise ConfigError(
            f"checkpoint={short_repr(checkpoint)} chooses a step of a run, but {found.path} is of the format "
            f"{found.kind}\nfix: leave it out"
        )
    return found.read(found.path)


def load(source: Run | str | Path, *, checkpoint: str | int = "best", device: str = "cpu") -> tuple[GPT, Tokenizer]:
    """Load a model, in eval mode, and its tokenizer. Weights keep the dtype in which they are stored.

    Args:
        source: A run, its folder, or a file or folder of another tool: see docs/import.md.
        checkpoint: Of a run: "best", "last", or a saved step.
        device: Device of the model.
    """
    if not isinstance(source, Run):
        found = _find_weights(source)
        source = Run.open(found.path) if found.kind == "run" else source
    if isinstance(source, Run):
        model, _ = source.load_model(checkpoint, device)
        return model, source.tokenizer()
    read = read_source(source, checkpoint)
    tokenizer = need_tokenizer(read)
    return build_model(read, device), tokenizer


def _find_weights(source: str | Path) -> Source:
    """Recognize a source with weights: any but a preset."""
    path = as_path(source, "a model")
    if str(path) in PRESETS and not path.exists():
        raise ConfigError(
            f"{path} is a preset, which has neither weights nor a tokenizer\n"
            f"fix: train it with `normscope train --preset {path}`, or use {SOURCE_KINDS}"
        )
    return find_source(path, presets=())


def need_tokenizer(checkpoint: ExternalCheckpoint) -> Tokenizer:
    """The tokenizer of a checkpoint; raises if it has none."""
    if checkpoint.tokenizer is None:
        raise FileError(
            f"{checkpoint.path} ({checkpoint.format}) has no tokenizer\n"
            f"fix: copy the tokenizer.json of the model beside its weights"
        )
    if checkpoint.tokenizer.chat_template is None:
        checkpoint.tokenizer.chat_template = checkpoint.chat_template
    return checkpoint.tokenizer


def _unknown(path: Path) -> FileError:
    snapshots = sorted(one for one in path.glob("snapshots/*") if (one / CONFIG_NAME).exists())
    if snapshots:
        newest = max(snapshots, key=lambda one: one.stat().st_mtime)
        return FileError(
            f"{path} is a folder of Hugging Face's cache, not a model\nfix: use a snapshot in it, {newest}"
        )
    signs = ["run: a folder with config.json and manifest.json", *(f"{one.name}: {one.sign}" for one in FORMATS)]
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir())
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        what = f"a folder with {', '.join(names[:_LISTED])}{more}" if names else "an empty folder"
    else:
        with open_regular(path) as file:
            what = f"a file that starts with {file.read(8)!r}"
    fix = f"use {SOURCE_KINDS}"
    if path.is_file() and (path.parent / CONFIG_NAME).is_file():
        fix = f"name the folder that it is in, {path.parent}"
    return FileError(f"{path} is not a model: it is {what}\nlooked for: {'; '.join(signs)}\nfix: {fix}")


def _ambiguous(path: Path, found: list[Format]) -> FileError:
    kinds = " and ".join(f"{one.name} ({one.sign})" for one in found)
    return FileError(f"{path} could be {kinds}\nfix: name a file in it, or move one of them to another folder")
