"""An ONNX model with a KV cache in onnxruntime, and the tokenizer.json beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.comparing.runtime import FloatArray
from normscope.comparing.runtimes import RuntimeMissingError, RuntimeRefusalError
from normscope.comparing.runtimes.library_codec import LibraryCodec

_DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64}


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
        try:
            facts = self.session.get_modelmeta().custom_metadata_map
            self.context, eos = int(facts["context"]), facts.get("eos_token_id")
            self.eos_token_id = None if eos is None else int(eos)
            self.caches = [one for one in self.session.get_inputs() if one.name != "input_ids"]
            self.empty_cache(1)
            self.vocab_size = int(self.session.get_outputs()[0].shape[-1])
            codec = LibraryCodec(folder / "tokenizer.json")
        except Exception as error:  # whatever another tool's folder leads to
            raise RuntimeRefusalError(
                f"{folder} is not an export of normscope ({type(error).__name__}: {error})\n"
                f"fix: name a folder that `normscope export --to onnx` wrote"
            ) from error
        self.encode, self.decode = codec.encode, codec.decode

    def logits(self, tokens: Sequence[int]) -> FloatArray:
        found: FloatArray = self.run([list(tokens)], self.empty_cache(1))[0][0]
        return found

    def cached_logits(self, tokens: Sequence[int], prompt: int) -> FloatArray:
        new, past, found = list(tokens), self.empty_cache(1), []
        for piece in (new[:prompt], *([token] for token in new[prompt:])):
            logits, *past = self.run([piece], past)
            found.append(logits[0])
        return np.concatenate(found)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        found: list[int] = []
        new, past = list(tokens), self.empty_cache(1)
        while len(found) < count:
            logits, *past = self.run([new], past)
            new = [int(logits[0, -1].argmax())]
            found += new
        return found

    def layers(self, tokens: Sequence[int]) -> Mapping[str, FloatArray]:
        return {}

    def empty_cache(self, batch: int) -> list[NDArray[Any]]:
        """The cache of a batch without earlier tokens."""
        return [
            np.zeros([{"batch": batch, "past": 0}.get(size, size) for size in one.shape], _DTYPES[one.type])
            for one in self.caches
        ]

    def run(self, tokens: list[list[int]], past: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the logits of new tokens, (b, s, vocab_size), and the new cache."""
        names = [one.name for one in self.caches]
        inputs = {"input_ids": np.array(tokens, np.int64), **dict(zip(names, past, strict=True))}
        found: list[NDArray[Any]] = self.session.run(None, inputs)
        return found
