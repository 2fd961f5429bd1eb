"""Read a model to start from: a run, or a Hugging Face folder."""

from pathlib import Path

from normscope.checks import as_path
from normscope.data.tokenizers.load import load_tokenizer
from normscope.errors import FileError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.interop.huggingface import load_huggingface
from normscope.runs.run import Run, is_run

_TOKENIZER = "tokenizer.json"


def read_source(source: str | Path) -> ExternalCheckpoint:
    """Read the checkpoint in a run folder (its best one) or in a Hugging Face folder."""
    path = as_path(source, "a checkpoint")
    if is_run(path):
        run = Run.open(path)
        model, _ = run.load_model()
        return ExternalCheckpoint("normscope run", path, model.config, model.state_dict(), run.tokenizer())
    model = load_huggingface(path)
    if not (path / _TOKENIZER).is_file():
        raise FileError(
            f"{path} has no {_TOKENIZER}, which encodes the text\n"
            f"fix: download it too, or tokenizer.save_pretrained({str(path)!r}) with transformers"
        )
    tokenizer = load_tokenizer(path)
    return ExternalCheckpoint("Hugging Face", path, model.config, model.state_dict(), tokenizer)
