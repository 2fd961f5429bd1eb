"""An ONNX model with a KV cache in onnxruntime, and the tokenizer.json beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from normscope.comparing.runtime import FloatArray
from normscope.comparing.runtimes import RuntimeMissingError, RuntimeRefusalError
from normscope.comparing.runtimes.library_codec import LibraryCodec


class OnnxRuntime:
    """The model.onnx of a folder; names and shapes as `normscope export --to onnx` writes them."""

    precision = "float32"
    has_tokenizer = True

    def __init__(self, folder: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise RuntimeMissingError("onnxruntime is not installed\nfix: pip install 'normscope[export]'") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        try:
            self.session = onnxruntime.InferenceSession(
                str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # it raises errors of every kind
            raise RuntimeRefusalError(f"onnxruntime cannot load it: {error}") from error
        self.name = f"onnxruntime {onnxruntime.__version__}"
        facts = self.session.get_modelmeta().custom_metadata_map
        self.context, eos = int(facts["context"]), facts.get("eos_token_id")
        self.eos_token_id = None if eos is None else int(eos)
        self.caches = [one for one in self.session.get_inputs() if one.name.startswith("past_key_values.")]
        self.vocab_size = int(self.session.get_outputs()[0].shape[-1])
        codec = LibraryCodec(folder / "tokenizer.json")
        self.encode, self.decode = codec.encode, codec.decode

    def logits(self, tokens: Sequence[int]) -> FloatArray:
        found: FloatArray = self._run([list(tokens)], self._empty(1))[0][0]
        return found

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        found: list[int] = []
        new, past = list(tokens), self._empty(1)
        while len(found) < count:
            logits, *past = self._run([new], past)
            new = [int(logits[0, -1].argmax())]
            found += new
        return found

    def layers(self, tokens: Sequence[int]) -> Mapping[str, FloatArray]:
        return {}

    def _empty(self, batch: int) -> list[FloatArray]:
        return [np.zeros((batch, one.shape[1], 0, one.shape[3]), np.float32) for one in self.caches]

    def _run(self, tokens: list[list[int]], past: list[FloatArray]) -> list[Any]:
        names = [one.name for one in self.caches]
        inputs = {"input_ids": np.array(tokens, np.int64), **dict(zip(names, past, strict=True))}
        found: list[Any] = self.session.run(None, inputs)
        return found
