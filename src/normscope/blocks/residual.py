"""Residual wirings: how attention and MLP are joined to the residual stream."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from normscope.blocks.checks import lookup
from normscope.blocks.fused_norms import add_and_normalize
from normscope.blocks.initialization import Role

Sublayer = Callable[[Tensor], Tensor]


@dataclass  # not frozen: torch.compile inside of torch.func.jvp cannot make one that is
class MaskedNorm:
    """A norm of a block, bound to the mask of the current input."""

    norm: nn.Module
    mask: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x, mask=self.mask)
        return y

    def without_padding(self, x: Tensor) -> Tensor:
        """Return x with zeros at padding, for a branch that reads the stream itself."""
        return x if self.mask is None else x.where(self.mask[:, :, None], 0.0)

    def add_and_normalize(self, x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
        """Return `x + branch` and its norm."""
        return add_and_normalize(x, branch, self.norm, self.mask)


@dataclass(frozen=True)
class Wiring:
    """A residual wiring of attention and MLP.

    Args:
        name: name in configs.
        formula: what the block computes, with norms N1, N2, ...
        norms: number of norms per block.
        join: (stream, attention, mlp, norms) -> stream.
        residual_branches: branches whose output is added to the stream; some initializations scale these down.
        ends_normalized: whether the block's output is normalized, so that the model needs no final norm.
    """

    name: str
    formula: str
    norms: int
    join: Callable[[Tensor, Sublayer, Sublayer, Sequence[MaskedNorm]], Tensor]
    residual_branches: tuple[Literal["attention", "mlp"], ...] = ("attention", "mlp")
    ends_normalized: bool = False

    def role(self, branch: Literal["attention", "mlp"]) -> Role:
        """Return the initialization role of a branch's output projection.

        A branch that is not added to the stream must not start at zero: two zero matrices in a row get no gradient.
        """
        return "residual" if branch in self.residual_branches else "input"


def _pre(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    x, normed = norms[1].add_and_normalize(x, attention(norms[0](x)))
    return x + mlp(normed)


def _post(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    _, x = norms[0].add_and_normalize(x, attention(x))
    _, x = norms[1].add_and_normalize(x, mlp(x))
    return x


def _sandwich(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    x, normed = norms[2].add_and_normalize(x, norms[1](attention(norms[0](x))))
    return x + norms[3](mlp(normed))


def _parallel(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    normed = norms[0](x)
    return x + attention(normed) + mlp(normed)


def _parallel_2(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    return x + attention(norms[0](x)) + mlp(norms[1](x))


def _branch(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    x = x + norms[0](attention(x))
    return x + norms[1](mlp(norms[1].without_padding(x)))


def _single(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    return x + mlp(attention(norms[0](x)))


def _none(x: Tensor, attention: Sublayer, mlp: Sublayer, norms: Sequence[MaskedNorm]) -> Tensor:
    return mlp(attention(norms[0](x)))


WIRINGS: Mapping[str, Wiring] = {
    wiring.name: wiring
    for wiring in (
        # Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture": GPT-2, Llama, nanochat.
        Wiring("pre", "x = x + A(N1 x);  x = x + M(N2 x)", 2, _pre),
        # Vaswani et al. 2017: the original transformer encoder; BERT.
        Wiring("post", "x = N1(x + A(x));  x = N2(x + M(x))", 2, _post, ends_normalized=True),
        # Ding et al. 2021, "CogView"; Gemma 2.
        Wiring("sandwich", "x = x + N2(A(N1 x));  x = x + N4(M(N3 x))", 4, _sandwich),
        # Wang and Komatsuzaki 2021, GPT-J; PaLM.
        Wiring("parallel", "x = x + A(N1 x) + M(N1 x)", 1, _parallel),
        # Black et al. 2022, "GPT-NeoX-20B"; Pythia.
        Wiring("parallel-2", "x = x + A(N1 x) + M(N2 x)", 2, _parallel_2),
        # Liu et al. 2022, "Swin Transformer V2"; OLMo 2.
        Wiring("branch", "x = x + N1(A(x));  x = x + N2(M(x))", 2, _branch),
        # One residual connection around both branches, for experiments.
        Wiring("single", "x = x + M(A(N1 x))", 1, _single, residual_branches=("mlp",)),
        # No residual connections, for experiments.
        Wiring("none", "x = M(A(N1 x))", 1, _none, residual_branches=()),
    )
}


def get_wiring(name: str) -> Wiring:
    return lookup("wiring", name, WIRINGS)
