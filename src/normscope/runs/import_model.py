"""`normscope import`: write the checkpoint of another tool as a run folder."""

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from normscope.checks import as_path
from normscope.data.corpus import TOKENIZER_NAME
from normscope.data.tokenizers import Tokenizer
from normscope.data.tokenizers.template_settings import TOKENIZER_CONFIG, template_settings
from normscope.errors import ConfigError, FileError, WeightsError
from normscope.interop.checkpoint import ExternalCheckpoint, build_model
from normscope.ops.finite import is_finite
from normscope.runs.config import Imported, RunConfig
from normscope.runs.read_source import find_source, need_tokenizer, read_source
from normscope.runs.run import Run, new_run_folder
from normscope.storage.files import make_folder, write_errors
from normscope.training.config import TrainConfig


def import_model(
    source: str | Path, out: str | Path | None = None, *, notify: Callable[[str], None] = lambda notice: None
) -> Run:
    """Write the checkpoint of another tool as a run folder, like `normscope import`, and return the run.

    The run has one checkpoint, of step 0, with weights in the dtype in which they are stored, and no training data:
    everything but `resume` and `report` works on it. A killed import leaves no run.

    Args:
        source: A file or folder of another tool: see docs/import.md.
        out: The run folder; by default a new folder in runs/.
        notify: Called with each notice, such as that a part of the model is left out.
    """
    if find_source(source).kind == "run":
        raise ConfigError(f"{source} is already a run\nfix: use it as it is")
    checkpoint = read_source(source)
    tokenizer = need_tokenizer(checkpoint)
    for notice in dict.fromkeys((*checkpoint.notices, *tokenizer.notices)):
        notify(notice)
    folder = new_run_folder([checkpoint.path]) if out is None else as_path(out, "a run")
    _check_free(folder)
    weights = build_model(checkpoint).state_dict()  # in their own size: it reads one after the other
    _check_finite(checkpoint, weights)
    parent = make_folder(folder.resolve().parent)
    partial = parent / f".{folder.name}.{secrets.token_hex(8)}.part"
    try:
        with write_errors(folder):
            _write_run(partial, checkpoint, tokenizer, weights)
            os.replace(partial, folder)  # the run appears complete, or not at all
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Run.open(folder)


def _check_free(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FileError(f"{folder} exists and is not an empty folder\nfix: choose a new folder with --out")


def _check_finite(checkpoint: ExternalCheckpoint, weights: Mapping[str, Tensor]) -> None:
    for name, tensor in weights.items():
        if not is_finite(tensor):
            raise WeightsError(
                f"{checkpoint.path} has non-finite values in {name}\nfix: use another checkpoint of the model"
            )


def _write_run(
    folder: Path, checkpoint: ExternalCheckpoint, tokenizer: Tokenizer, weights: Mapping[str, Tensor]
) -> None:
    """Write the run: the checkpoint is bound to the config, which has the checksum of the tokenizer."""
    make_folder(folder)
    if tokenizer.chat_template is not None or tokenizer.template_variables:
        (folder / TOKENIZER_CONFIG).write_bytes(template_settings(tokenizer))
    data = tokenizer.to_json().encode()
    checksum = hashlib.sha256(data).hexdigest()
    config = RunConfig(
        corpus=None,
        fingerprint={"tokenizer": checksum},
        model=checkpoint.config,
        train=TrainConfig(steps=1, batch=1),  # not trained here
        imported=Imported(checkpoint.format, checkpoint.path.resolve().name, checksum),
    )
    file = folder / f".{TOKENIZER_NAME}"
    file.write_bytes(data)
    run = Run.create(folder, config, file)
    file.unlink()
    run.checkpoints.save(0, {"model": weights}, _state(config))


def _state(config: RunConfig) -> dict[str, Any]:
    """The state of a checkpoint before the first step."""
    return {
        "step": 0,
        "next_batch": 0,
        "skipped_batches": [],
        "config": config.to_json(),
        "best": None,
        "seconds": 0.0,
        "metrics_bytes": 0,
        "metrics_sha256": hashlib.sha256(b"").hexdigest(),
        "environment": {},
    }
