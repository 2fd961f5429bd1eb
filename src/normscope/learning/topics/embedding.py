"""Embedding: a table with one vector per token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.linear import Embedding
from normscope.errors import ShapeError, TokenError
from normscope.learning.checks import format_number
from normscope.learning.lesson import Lesson, step
from normscope.learning.torch_state import seeded

WIDTH, VOCAB_SIZE = 4, 6
MAX_TOKEN_ID = 65536
"""Largest token id allowed here."""

MAX_ONE_HOT_VALUES = 10**7
"""Maximum number of values of the one-hot vectors."""


@step()
def one_hot(tokens: Tensor, weight: Tensor) -> Tensor:
    """Token ids are labels, not quantities: token 4 is not twice token 2. As a one-hot vector, a token is 1 at its own
    index and 0 elsewhere."""
    return F.one_hot(tokens, weight.shape[0]).to(weight.dtype)


@step()
def one_hot_product(one_hot: Tensor, weight: Tensor) -> Tensor:
    """So a linear layer could do the lookup: the product with the table selects one row."""
    return one_hot @ weight


@step(
    {
        "torch.nn.Embedding": lambda tokens, weight: nn.Embedding.from_pretrained(weight)(tokens),
        "normscope.Embedding": lambda tokens, weight: Embedding.from_pretrained(weight)(tokens),
    }
)
def result(tokens: Tensor, weight: Tensor) -> Tensor:
    """Indexing gives the same result at almost no cost: one vector per token. The same token gets the same vector at
    every position."""
    return weight[tokens, :]


@step()
def max_abs(weight: Tensor) -> Tensor:
    """The table is initialized from a normal distribution with standard deviation 1, truncated at 3."""
    return weight.abs().max()


def embedding(x: Tensor | None) -> Lesson:
    tokens = torch.tensor([[1, 2, 4], [5, 1, 1]]) if x is None else _tokens(x)
    vocab_size = max(VOCAB_SIZE, int(tokens.max()) + 1)
    table = seeded(lambda: Embedding(vocab_size, WIDTH))
    one_hot_steps = [one_hot, one_hot_product] if tokens.numel() * vocab_size <= MAX_ONE_HOT_VALUES else []
    return Lesson(
        title="Embedding",
        summary=f"""An embedding maps each token of the vocabulary (here {vocab_size}) to its own learned vector (here
        of width {WIDTH}). It is the first layer of a language model: token ids in, vectors out.""",
        given={"tokens": tokens, "weight": table.weight.detach()},
        steps=[*one_hot_steps, result, max_abs],
    )


def _tokens(x: Tensor) -> Tensor:
    whole = x.floor() == x
    if not bool(whole.all()):
        wrong = x[~whole].flatten()[0].item()
        raise TokenError(f"token ids must be integers, but got {wrong:g}\nfix: --input 1,2,4")
    if bool((x < 0).any() | (x > MAX_TOKEN_ID).any()):
        wrong = x[(x < 0) | (x > MAX_TOKEN_ID)].flatten()[0].item()
        raise TokenError(
            f"token ids must be between 0 and {MAX_TOKEN_ID} here, but got {format_number(wrong)}\nfix: --input 1,2,4"
        )
    if x.dim() == 0:
        raise ShapeError("embedding expects at least one dimension, but got a scalar\nfix: --input 1,2,4")
    return x.long()
