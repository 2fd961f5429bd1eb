"""The model that came of a run, ready to be used."""

from pathlib import Path

from normscope.data.tokenizers import Tokenizer
from normscope.models.gpt import GPT
from normscope.runs.run import Run


def load_run(folder: str | Path, checkpoint: str | int = "best", device: str = "cpu") -> tuple[GPT, Tokenizer]:
    """The model of a run, in eval mode, and the tokenizer that goes with it.

    Args:
        folder: the run's.
        checkpoint: "best", "last", or the number of a step that was saved.
        device: where the model shall be.
    """
    run = Run.open(folder)
    model, _ = run.load_model(checkpoint, device)
    return model, run.tokenizer()
