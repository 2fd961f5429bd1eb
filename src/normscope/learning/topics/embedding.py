"""Embedding: a table with one vector per token."""

import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.linear import Embedding
from normscope.errors import ShapeError, TokenError
from normscope.learning.inputs import format_number
from normscope.learning.lesson import Lesson, Step, Topic, seeded

MAX_TOKEN_ID = 65536
"""Largest token id allowed here."""

MAX_ONE_HOT_VALUES = 10**7
"""Maximum number of values of the one-hot vectors."""


def fits_one_hot(tokens: Tensor, vocab_size: int) -> bool:
    return tokens.numel() * vocab_size <= MAX_ONE_HOT_VALUES


@Step(when=fits_one_hot)
def one_hot(tokens: Tensor, weight: Tensor) -> Tensor:
    """Token ids are labels, not quantities: token 4 is not twice token 2. As a one-hot vector, a token is 1 at its own
    index and 0 elsewhere."""
    return F.one_hot(tokens, weight.shape[0]).to(weight.dtype)


@Step(when=fits_one_hot)
def one_hot_product(one_hot: Tensor, weight: Tensor) -> Tensor:
    """So a linear layer could do the lookup: the product with the table selects one row."""
    return one_hot @ weight


@Step(
    {
        "torch.nn.Embedding": lambda tokens, weight: nn.Embedding.from_pretrained(weight)(tokens),
        "normscope.Embedding": lambda tokens, weight: Embedding.from_pretrained(weight)(tokens),
    }
)
def result(tokens: Tensor, weight: Tensor) -> Tensor:
    """Indexing gives the same result at almost no cost: one vector per token. The same token gets the same vector at
    every position."""
    return weight[tokens, :]


@Step()
def max_abs(weight: Tensor) -> Tensor:
    """The table is initialized from a normal distribution with standard deviation 1, truncated at 3."""
    return weight.abs().max()


def check_token_ids(x: Tensor) -> Tensor:
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


@Topic(
    "one vector per token",
    title="Embedding",
    example=((1.0, 2.0, 4.0), (5.0, 1.0, 1.0)),
    check=check_token_ids,
)
def embedding(x: Tensor) -> Lesson:
    """An embedding maps each token of the vocabulary (here {vocab_size}) to its own learned vector (here of width
    {width}). It is the first layer of a language model: token ids in, vectors out."""
    vocab_size, width = max(6, int(x.max()) + 1), 4
    table = seeded(lambda: Embedding(vocab_size, width))
    return Lesson({"tokens": x, "weight": table.weight.detach()}, {"vocab_size": vocab_size, "width": width})
