"""Linear and Embedding: torch's layers with variance-preserving initialization."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from normscope.blocks import checks
from normscope.blocks.initialization import Initialization, Role, get_initialization
from normscope.blocks.torch_tools import BaseModule, Quantizable, is_fx_proxy
from normscope.checks import check_positive_int, check_positive_number, is_integer
from normscope.errors import ConfigError, DtypeError, ShapeError
from normscope.ops import half_weights
from normscope.ops.norm.reference import check_dense

# The layouts that torch can multiply with a matrix.
_MULTIPLIED = (torch.strided, torch.jagged, torch.sparse_csr)


class Linear(Quantizable, BaseModule, nn.Linear):
    r"""Linear layer with weights initialized to N(0, 2/(d_in + d_out)), truncated at 3 sigma, and zero bias.

    Formula:
        y = x @ weight.T + bias

    Scope:
        None: each position separately.

    Shapes:
        x: (..., in_features). y: (..., out_features). weight: (out_features, in_features). bias: (out_features).

    Args:
        in_features, out_features, bias, device, dtype: as in torch.nn.Linear.
        init: initialization of the weight: a name or an `Initialization`.
        role: role of the layer in the model, on which the initialization depends.
        depth: number of blocks of the model, on which some initializations depend.

    Example:
        >>> import torch
        >>> layer = Linear(2, 3, bias=False)
        >>> layer
        Linear(d_in=2, d_out=3, bias=False, init=glorot-truncated)
        >>> x = torch.tensor([[1.8, 80.0], [1.6, 50.0]])
        >>> torch.equal(layer(x), x @ layer.weight.T)
        True

    Paper:
        Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks".
    """

    torch_type = nn.Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        init: str | Initialization = "glorot-truncated",
        role: Role = "input",
        depth: int = 1,
    ) -> None:
        check_positive_int(in_features=in_features, out_features=out_features, depth=depth)
        checks.check_placement(device, dtype)
        # Before super().__init__(), which calls reset_parameters.
        self.init, self.role, self.depth = get_initialization(init), role, depth
        super().__init__(in_features, out_features, bias, device, dtype)

    def reset_parameters(self) -> None:
        self.init.fill_(self.weight, self.role, self.depth)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        if is_fx_proxy(input):
            return self._fx_call(input)
        checks.check_tensor(input, self)
        if input.layout not in _MULTIPLIED or (input.is_nested and input.layout is torch.strided):
            check_dense(input, self)
        if input.dim() == 0 or input.shape[-1] != self.in_features:
            raise ShapeError(
                f"{self!r} takes tensors whose last dimension is {self.in_features}, but got {tuple(input.shape)}"
            )
        if input.dtype == torch.float32 and half_weights.is_stored_in_half(self.weight):
            return half_weights.linear(input, self.weight, self.bias)
        checks.check_type_of(input, self.weight, self)
        return super().forward(input)

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"d_in={self.in_features}, d_out={self.out_features}, bias={bias}, init={self.init.name}"


class Embedding(Quantizable, BaseModule, nn.Embedding):
    r"""Embedding table, initialized to N(0, 1) truncated at +-3.

    Formula:
        y = weight[tokens]

    Scope:
        None: each token separately.

    Shapes:
        tokens: (...) of integers. y: (..., embedding_dim). weight: (num_embeddings, embedding_dim).

    Args:
        num_embeddings, embedding_dim and the following: as in torch.nn.Embedding.
        init: initialization of the table: a name or an `Initialization`.
        role: "embedding" for tokens, "position" for positions, "tied" if the table is also the output head.

    Example:
        >>> import torch
        >>> table = Embedding(30000, 512)
        >>> table
        Embedding(vocab=30000, d=512, init=glorot-truncated)
        >>> table(torch.tensor([[1, 2, 3]])).shape, bool(table.weight.abs().max() <= 3)
        (torch.Size([1, 3, 512]), True)

    Paper:
        Bengio et al. 2003, "A Neural Probabilistic Language Model".
    """

    torch_type = nn.Embedding

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        init: str | Initialization = "glorot-truncated",
        role: Role = "embedding",
    ) -> None:
        check_positive_int(num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        checks.check_placement(device, dtype)
        count = num_embeddings
        if padding_idx is not None and not (is_integer(padding_idx, least=-count) and padding_idx < count):
            raise ConfigError(f"padding_idx={padding_idx!r} is not one of the {num_embeddings} entries")
        if max_norm is not None:
            check_positive_number(max_norm=max_norm)
        if norm_type != float("inf"):
            check_positive_number(norm_type=norm_type)
        if _weight is not None:
            _check_table(_weight, self.__class__.__name__)
            wanted, shape = (num_embeddings, embedding_dim), tuple(_weight.shape)
            if shape != wanted:
                raise ShapeError(f"expected a table of shape {wanted}, but got {shape}")
        # Before super().__init__(), which calls reset_parameters.
        self.init, self.role = get_initialization(init), role
        options: dict[str, Any] = {"scale_grad_by_freq": scale_grad_by_freq, "sparse": sparse, "_weight": _weight}
        options |= {"_freeze": _freeze, "device": device, "dtype": dtype}
        super().__init__(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, **options)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, *args: Any, **kwargs: Any) -> "Embedding":
        """Create an embedding from a table (entries, width), frozen by default, as torch.nn.Embedding."""
        _check_table(embeddings, cls.__name__)
        table: Embedding = super().from_pretrained(embeddings, *args, **kwargs)  # type: ignore[no-untyped-call]
        return table

    def reset_parameters(self) -> None:
        self.init.fill_(self.weight, self.role)
        self._fill_padding_idx_with_zero()

    def forward(self, input: Tensor) -> Tensor:
        if is_fx_proxy(input):
            return self._fx_call(input)
        checks.check_tokens(input, self)
        # On another device torch would read out of bounds.
        checks.check_same_device("the tensor of token ids", input.device, self.weight.device)
        try:
            return super().forward(input)
        except IndexError:
            raise checks.unknown_token(input, self.num_embeddings, self) from None

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        entries = "positions" if self.role == "position" else "vocab"
        return f"{entries}={self.num_embeddings}, d={self.embedding_dim}{padding}, init={self.init.name}"


def with_torch_layers(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose `Linear` and `Embedding` layers are torch's, for tools that need the exact type.

    The results are the same; only the argument checks are gone.

    >>> import torch
    >>> model = nn.Sequential(Linear(2, 3), nn.ReLU())
    >>> with_torch_layers(model)
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): ReLU()
    )
    """
    plain = copy.deepcopy(model)
    for module in plain.modules():
        if type(module) in (Linear, Embedding):  # a subclass may override anything
            module.__class__ = module.torch_type  # type: ignore[assignment]
    return plain


def _check_table(table: Tensor, taker: str) -> None:
    checks.check_tensor(table, taker)
    if table.dim() != 2:
        raise ShapeError(f"a table has the shape (entries, width), but got {tuple(table.shape)}")
    if not table.is_floating_point():
        raise DtypeError(f"an embedding table must be floating-point, but got {table.dtype}; use .float()")
