"""Run the model on a batch of sequences: tokens in, logits of each sequence's next token out.

A sequence must get bit-identical logits alone and in any batch: one different bit can select another token, and the
texts diverge from there. torch's results for a row depend on the batch: matrix products use another summation order
for one row than for eight, SiLU and GELU use another formula in the remainder of a vectorized loop, and padding changes
sums. Therefore:

| new tokens of a sequence            | computed by                                                           |
|-------------------------------------|-----------------------------------------------------------------------|
| one                                 | the fused decoder, all sequences batched: rows are independent        |
| several, or an unsupported model    | the model, one sequence at a time, in shapes independent of the batch |

`ModelRunner.next_logits` makes this choice for each sequence, from that sequence alone. Whether the decoder supports
the model is checked once per runner, not per token: hooks added later do not see the tokens of this runner.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import finalize

import numpy as np
import torch
from torch import nn

from normscope.blocks.cache import KVCache
from normscope.generate.config import WeightFormat
from normscope.generate.decoder import Decoder, get_layout
from normscope.generate.sampling import FloatArray
from normscope.generate.sequence import TokenSequence
from normscope.models.gpt import GPT
from normscope.runtime.adaptive_threads import AdaptiveThreads


class ModelRunner:
    """Prefill and decode: feed the model the tokens of each window that are not yet in the KV cache.

    With a KV cache each token is computed once. A model whose norm shares statistics along the sequence cannot be
    cached (see `GPT.cacheable`), and recomputes the whole window for each token.

    Args:
        model: the model.
        batch_size: number of sequences.
        capacity: length of the longest window.
        weights: weight format of the fused decoder.
    """

    def __init__(self, model: GPT, batch_size: int, capacity: int, weights: WeightFormat = "float32") -> None:
        self._model = model
        self._modules = list(model.modules())
        self._cache = model.new_cache(batch_size, capacity) if model.cacheable else None
        self._window_starts = [0] * batch_size  # position of the first token of each row of the cache
        self._layout = None if self._cache is None else get_layout(model, weights)
        self._decoder: Decoder | None = None  # created at the first batched step
        # Fewer threads could change how torch rounds, so the model always uses all; only their waiting adapts.
        self._threads = AdaptiveThreads(torch.get_num_threads(), is_allowed=lambda threads: False)
        self._threads.reset()
        finalize(self, self._threads.release)

    def next_logits(self, sequences: Sequence[TokenSequence]) -> list[FloatArray]:
        """Return the logits after the last token of each sequence, (vocabulary) in float64."""
        if self._cache is None:
            return [self._run_model(sequence.window) for sequence in sequences]
        new = [self._uncached_tokens(i, sequence) for i, sequence in enumerate(sequences)]
        if self._layout is not None and new and all(len(tokens) == 1 for tokens in new):
            if self._decoder is None:
                self._decoder = Decoder(self._layout, self._cache)
            return list(self._decoder.advance([token for (token,) in new]).astype(np.float64))
        return [self._run_alone(i, tokens) for i, tokens in enumerate(new)]

    def select(self, indices: Sequence[int]) -> None:
        """Continue with these rows, by their current index; rows may be dropped or repeated."""
        self._window_starts = [self._window_starts[i] for i in indices]
        if self._cache is not None and indices and list(indices) != list(range(self._cache.batch)):
            self._cache = self._cache.select(indices)
            self._decoder = None

    def _uncached_tokens(self, i: int, sequence: TokenSequence) -> list[int]:
        """The tokens of the window that are not in the cache: all of them if the window has restarted."""
        cache = self._cache_row(i)
        if self._window_starts[i] != sequence.window_start:
            cache.truncate(0)
            self._window_starts[i] = sequence.window_start
        return sequence.tokens[sequence.window_start + cache.length :]

    def _run_alone(self, i: int, tokens: list[int]) -> FloatArray:
        if self._layout is not None and len(tokens) == 1:
            logits: FloatArray = Decoder(self._layout, self._cache_row(i)).advance(tokens)[0].astype(np.float64)
            return logits
        return self._run_model(tokens, self._cache_row(i))

    def _run_model(self, tokens: list[int], cache: KVCache | None = None) -> FloatArray:
        start = time.perf_counter()
        with eval_inference_mode(self._modules):
            batch = torch.tensor([tokens], device=self._model.embedding.weight.device)
            logits = self._model(batch, cache=cache, last_only=True)[0, -1]
            found: FloatArray = logits.cpu().double().numpy()  # to the CPU first: some devices have no float64
        self._threads.step(time.perf_counter() - start)
        return found

    def _cache_row(self, i: int) -> KVCache:
        assert self._cache is not None
        return self._cache.row(i)


@contextmanager
def eval_inference_mode(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Run in eval and inference mode, and restore the mode of every module afterwards.

    Entered for each forward pass rather than for a whole generation: between two tokens the caller may use the model.
    """
    training = [module for module in modules if module.training]
    try:
        for module in training:
            module.training = False
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True
