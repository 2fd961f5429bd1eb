"""Embedding: a table of vectors, one for each token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.linear import Embedding
from normscope.errors import ShapeError, TokenError
from normscope.learning.checks import format_number
from normscope.learning.lesson import Lesson, step
from normscope.learning.torch_state import seeded

WIDTH, VOCABULARY = 4, 6
LARGEST = 65536
"""The largest token id that a table is made for."""

LARGEST_ONE_HOT = 10**7
"""How many numbers the one-hot vectors may have."""


@step()
def one_hot(tokens: Tensor, weight: Tensor) -> Tensor:
    """A token is a number, but no quantity: token 4 is not twice token 2. Written as a vector it is a 1 in its
    own place and 0 in all others."""
    return F.one_hot(tokens, weight.shape[0]).to(weight.dtype)


@step()
def product(one_hot: Tensor, weight: Tensor) -> Tensor:
    """So a linear layer could do it: the product with the table picks out one row."""
    return one_hot @ weight


@step(
    {
        "torch.nn.Embedding": lambda tokens, weight: nn.Embedding.from_pretrained(weight)(tokens),
        "normscope.Embedding": lambda tokens, weight: Embedding.from_pretrained(weight)(tokens),
    }
)
def result(tokens: Tensor, weight: Tensor) -> Tensor:
    """To look the row up gives the same and costs next to nothing: one vector for each token. The same token gets
    the same vector, wherever it stands."""
    return weight[tokens, :]


@step()
def largest(weight: Tensor) -> Tensor:
    """The table starts as normal numbers with a spread of 1, cut at 3: none of them is larger."""
    return weight.abs().max()


def embedding(x: Tensor | None) -> Lesson:
    tokens = torch.tensor([[1, 2, 4], [5, 1, 1]]) if x is None else _tokens(x)
    vocabulary = max(VOCABULARY, int(tokens.max()) + 1)
    table = seeded(lambda: Embedding(vocabulary, WIDTH))
    detour = [one_hot, product] if tokens.numel() * vocabulary <= LARGEST_ONE_HOT else []
    return Lesson(
        title="Embedding",
        summary=f"""An embedding gives every token of the vocabulary (here {vocabulary}) a vector of its own (here
        of {WIDTH} numbers), which is learnt. It is the first layer of a language model: numbers of tokens in,
        vectors out.""",
        given={"tokens": tokens, "weight": table.weight.detach()},
        steps=[*detour, result, largest],
    )


def _tokens(x: Tensor) -> Tensor:
    whole = x.floor() == x
    if not bool(whole.all()):
        wrong = x[~whole].flatten()[0].item()
        raise TokenError(f"tokens are whole numbers, but got {wrong:g}\nfix: --input 1,2,4")
    if bool((x < 0).any() | (x > LARGEST).any()):
        wrong = x[(x < 0) | (x > LARGEST)].flatten()[0].item()
        raise TokenError(f"a token is 0 to {LARGEST} here, but got {format_number(wrong)}\nfix: --input 1,2,4")
    if x.dim() == 0:
        raise ShapeError("an embedding takes a row of tokens at least, but got a single number\nfix: --input 1,2,4")
    return x.long()
