"""The model reads the rows: tokens in, the logits of each row's next token out.

A text must get the same bits alone and in any batch: one flipped bit is enough to choose another token, and from there
on the texts part. torch multiplies one row in another order than eight, computes an element by another formula when it
falls into the rest of a loop over vectors (SiLU and GELU do), and adds otherwise where shorter rows are padded. So:

| what a row has that is new | who reads it                                                                     |
|----------------------------|----------------------------------------------------------------------------------|
| one token                  | the decoder, of all rows together: it computes each row alike, beside any others |
| more, or a model that the decoder does not know | the model, each row alone, in shapes that depend on no other |

`Reader.read` is the one place that decides this, and by the row alone. Whether the decoder knows the model is asked
when a reader is made, and not again for each token: a hook that comes later does not see the tokens of this reader.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import finalize

import numpy as np
import torch
from torch import Tensor, nn

from normscope.blocks.cache import KVCache
from normscope.generate.decoder import Decoder, Weights, layout_of
from normscope.generate.sampling import Numbers
from normscope.generate.sequence import Row
from normscope.models.gpt import GPT
from normscope.runtime.adaptive_threads import AdaptiveThreads


class Reader:
    """Reads whatever a row's window has that was not read before.

    With a cache each token is computed once. A model whose norm looks along the tokens cannot be cached (see
    `GPT.cacheable`), and reads the whole window each time.

    Args:
        model: what reads.
        rows: how many rows will be read.
        capacity: how many tokens the largest window will have.
        weights: the format of the weights that the decoder reads.
    """

    def __init__(self, model: GPT, rows: int, capacity: int, weights: Weights = "float32") -> None:
        self._model = model
        self._modules = list(model.modules())
        self._cache = model.new_cache(rows, capacity) if model.cacheable else None
        self._begins = [0] * rows  # where in its text each row of the cache begins
        self._layout = None if self._cache is None else layout_of(model, weights)
        self._decoder: Decoder | None = None  # of all rows; made when they are first read together
        # The model itself may round otherwise on fewer threads, so it keeps all; on a busy machine they wait otherwise.
        self._threads = AdaptiveThreads(torch.get_num_threads(), allowed=lambda threads: False)
        self._threads.new_work()
        finalize(self, self._threads.release)

    def read(self, rows: Sequence[Row]) -> list[Numbers]:
        """The logits after the newest token of each row, (vocabulary) in float64."""
        if self._cache is None:
            return [self._read_by_model(row.window) for row in rows]
        new = [self._new_tokens(i, row) for i, row in enumerate(rows)]
        if self._layout is not None and new and all(len(tokens) == 1 for tokens in new):
            if self._decoder is None:
                self._decoder = Decoder(self._layout, self._cache)
            return list(self._decoder.advance([token for (token,) in new]).astype(np.float64))
        return [self._read_alone(i, tokens) for i, tokens in enumerate(new)]

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows, by the number they had: without some, or with one several times."""
        self._begins = [self._begins[row] for row in rows]
        if self._cache is not None and rows and list(rows) != list(range(self._cache.batch)):
            self._cache = self._cache.select(rows)
            self._decoder = None

    def _new_tokens(self, i: int, row: Row) -> list[int]:
        """What the cache does not know yet of a row; all of it where the row's window begins anew."""
        memory = self._cache_row(i)
        if self._begins[i] != row.begin:
            memory.truncate(0)
            self._begins[i] = row.begin
        return row.tokens[row.begin + memory.length :]

    def _read_alone(self, i: int, tokens: list[int]) -> Numbers:
        if self._layout is not None and len(tokens) == 1:
            logits: Numbers = Decoder(self._layout, self._cache_row(i)).advance(tokens)[0].astype(np.float64)
            return logits
        return self._read_by_model(tokens, self._cache_row(i))

    def _read_by_model(self, tokens: list[int], cache: KVCache | None = None) -> Numbers:
        start = time.perf_counter()
        with undisturbed(self._modules):
            logits = _numbers(self._model(self._tensor(tokens), cache=cache, last_only=True))
        self._threads.step(time.perf_counter() - start)
        return logits

    def _cache_row(self, i: int) -> KVCache:
        assert self._cache is not None
        return self._cache.row(i)

    def _tensor(self, tokens: list[int]) -> Tensor:
        return torch.tensor([tokens], device=self._model.embedding.weight.device)


@contextmanager
def undisturbed(modules: Sequence[nn.Module]) -> Iterator[None]:
    """In eval mode and without gradients; afterwards, also after an error, each module is as it was.

    This is done for every reading, and not once for a whole text: between two tokens the model is the caller's.
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


def _numbers(logits: Tensor) -> Numbers:
    """(1, 1, vocabulary) -> (vocabulary) as numpy's float64, which holds every number of a smaller type."""
    numbers: Numbers = logits[0, -1].cpu().double().numpy()  # in this order, for some devices have no float64
    return numbers
