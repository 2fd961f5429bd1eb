"""What the tests of the decoder share: its logits for whole texts, and the same of whole passes in float64."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from normscope.blocks.norm.base import Norm
from normscope.generate.config import WeightFormat
from normscope.generate.decoder import Decoder, DecoderLayout, get_layout
from normscope.models.gpt import GPT
from tests.support import random_tokens

Numbers = NDArray[np.float64]


def known_layout(model: GPT, weights: WeightFormat = "float32") -> DecoderLayout:
    layout = get_layout(model, weights)
    assert layout is not None
    return layout


def texts_of(lengths: Sequence[int], vocabulary: int, seed: int = 0) -> list[list[int]]:
    return [random_tokens(vocabulary, length, seed=seed + i).tolist() for i, length in enumerate(lengths)]


def decoded(
    model: GPT, texts: Sequence[Sequence[int]], weights: WeightFormat = "float32", together: int = 2, threads: int = 1
) -> Numbers:
    """The logits after each of the last `together` tokens, (together, rows, vocabulary).

    Each text is read into its own row, and the last tokens of all of them together, by so many threads: they stand at
    unequal places.
    """
    layout, cache = known_layout(model, weights), model.new_cache(len(texts))
    for i, text in enumerate(texts):
        alone = Decoder(layout, cache.row(i))
        for token in text[:-together]:
            alone.advance([token])
    decoder, before = Decoder(layout, cache), torch.get_num_threads()
    torch.set_num_threads(threads)
    found = [decoder.advance([text[last] for text in texts]).astype(np.float64) for last in range(-together, 0)]
    torch.set_num_threads(before)
    return np.stack(found)


@torch.no_grad()
def whole_passes(model: GPT, texts: Sequence[Sequence[int]], together: int = 2) -> Numbers:
    """The same by the definition: a pass over each text, in float64."""
    exact = copy.deepcopy(model).double().eval()
    for module in exact.modules():
        if isinstance(module, Norm) and module.eps is None:
            module.eps = torch.finfo(torch.float32).eps  # it depends on the type, and is float32's here
    logits = [exact(torch.tensor([text]))[0, -together:].numpy() for text in texts]
    return np.stack(logits, axis=1)


def relative_error(found: Numbers, wanted: Numbers) -> float:
    """The largest difference, over the largest logit."""
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())
