"""Load the model of a run."""

from pathlib import Path

from normscope.data.tokenizers import Tokenizer
from normscope.models.gpt import GPT
from normscope.runs.run import Run


def load_run(folder: str | Path, checkpoint: str | int = "best", device: str = "cpu") -> tuple[GPT, Tokenizer]:
    """Load the model of a run, in eval mode, and its tokenizer.

    Args:
        folder: The run folder.
        checkpoint: "best", "last", or a saved step.
        device: Device of the model.
    """
    run = Run.open(folder)
    model, _ = run.load_model(checkpoint, device)
    return model, run.tokenizer()
