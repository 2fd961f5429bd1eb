"""A LoRA adapter in peft, on a Hugging Face folder in transformers."""

from pathlib import Path

from normscope.comparing.runtimes import RuntimeMissingError, RuntimeRefusalError
from normscope.comparing.runtimes.transformers_runtime import TransformersRuntime


class PeftRuntime(TransformersRuntime):
    """An adapter merged into its base model by peft.

    Args:
        folder: the adapter.
        base: the base model.
    """

    def __init__(self, folder: Path, base: Path) -> None:
        try:
            import peft
        except ImportError:
            raise RuntimeMissingError("peft is not installed\nfix: pip install peft") from None
        super().__init__(base)
        try:
            self.model = peft.PeftModel.from_pretrained(self.model, folder).merge_and_unload().eval()
        except Exception as error:  # it raises errors of every kind
            raise RuntimeRefusalError(f"peft cannot load it: {error}") from error
        self.name = f"peft {peft.__version__} on {self.name}"
