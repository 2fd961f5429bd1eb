"""Wirings: how attention and MLP are joined to the residual stream. One value, not a row of flags."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from normscope.blocks.add_norm import add_and_normalize
from normscope.blocks.checks import lookup
from normscope.blocks.initialization import Role

Sublayer = Callable[[Tensor], Tensor]


@dataclass  # not frozen: torch.compile inside of torch.func.jvp cannot make one that is
class MaskedNorm:
    """A norm of a block, and the mask that goes with what it is given."""

    norm: nn.Module
    mask: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x, mask=self.mask)
        return y

    def sum(self, x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
        """x + branch, and its norm."""
        return add_and_normalize(x, branch, self.norm, self.mask)


@dataclass(frozen=True)
class Wiring:
    """A way to join two branches to the stream.

    Args:
        name: what configs call it.
        formula: what it does, with the norms N1, N2, ...
        norms: how many norms a block of it has.
        join: (stream, attention, mlp, norms) -> stream.
        writers: the branches whose output is added to the stream; some initializations start those small or at zero.
        ends_normalized: whether the stream leaves the block normalized, so that a model needs no norm at its end.
    """

    name: str
    formula: str
    norms: int
    join: Callable[[Tensor, Sublayer, Sublayer, Sequence[MaskedNorm]], Tensor]
    writers: tuple[Literal["attention", "mlp"], ...] = ("attention", "mlp")
    ends_normalized: bool = False

    def role(self, branch: Literal["attention", "mlp"]) -> Role:
        """The role of a branch's last projection, which decides how it starts.

        Where nothing is added to the stream, zero is no start: two zeros in a row get no gradient, ever.
        """
        return "residual" if branch in self.writers else "input"


def _pre(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    x, normed = norms[1].sum(x, attention(norms[0](x)))
    return x + mlp(normed)


def _post(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    _, x = norms[0].sum(x, attention(x))
    _, x = norms[1].sum(x, mlp(x))
    return x


def _sandwich(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    x, normed = norms[2].sum(x, norms[1](attention(norms[0](x))))
    return x + norms[3](mlp(normed))


def _parallel(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    normed = norms[0](x)
    return x + attention(normed) + mlp(normed)


def _single(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    return x + mlp(attention(norms[0](x)))


def _none(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    return mlp(attention(norms[0](x)))


WIRINGS: Mapping[str, Wiring] = {
    wiring.name: wiring
    for wiring in (
        # Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture": GPT-2, Llama, nanochat.
        Wiring("pre", "x = x + A(N1 x);  x = x + M(N2 x)", 2, _pre),
        # Vaswani et al. 2017: the encoder block of the first transformer, and BERT's.
        Wiring("post", "x = N1(x + A(x));  x = N2(x + M(x))", 2, _post, ends_normalized=True),
        # Ding et al. 2021, "CogView": Gemma 2's too.
        Wiring("sandwich", "x = x + N2(A(N1 x));  x = x + N4(M(N3 x))", 4, _sandwich),
        # Wang and Komatsuzaki 2021, GPT-J; PaLM.
        Wiring("parallel", "x = x + A(N1 x) + M(N1 x)", 1, _parallel),
        # What if one residual went round both? For the lab.
        Wiring("single", "x = x + M(A(N1 x))", 1, _single, writers=("mlp",)),
        # And what if there were none?
        Wiring("none", "x = M(A(N1 x))", 1, _none, writers=()),
    )
}


def get_wiring(name: str) -> Wiring:
    return lookup("wiring", name, WIRINGS)
