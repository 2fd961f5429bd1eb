"""Load the model of a run."""

from pathlib import Path

from normscope.data.tokenizers import Tokenizer
from normscope.models.gpt import GPT
from normscope.runs.run import Run


def load_run(run: Run | str | Path, checkpoint: str | int = "best", device: str = "cpu") -> tuple[GPT, Tokenizer]:
    """Load the model of a run, in eval mode, and its tokenizer.

    Args:
        run: The run, or its folder.
        checkpoint: "best", "last", or a saved step.
        device: Device of the model.
    """
    opened = run if isinstance(run, Run) else Run.open(run)
    model, _ = opened.load_model(checkpoint, device)
    return model, opened.tokenizer()
