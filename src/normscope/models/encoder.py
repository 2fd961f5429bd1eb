"""A bidirectional, post-norm transformer encoder, as in the original transformer and BERT."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope.blocks.block import Block, BlockConfig, final_norm
from normscope.blocks.checks import check_tokens
from normscope.blocks.linear import Embedding
from normscope.blocks.norm.norm_spec import NormSpec
from normscope.blocks.torch_tools import BaseModule, is_fx_proxy
from normscope.checks import check_config, check_positive_int
from normscope.errors import ShapeError
from normscope.models.size import check_model_size, count_block_parameters


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(BlockConfig):
    """Configuration of an `Encoder`: `vocab_size`, `context` and the fields of `BlockConfig`."""

    vocab_size: int
    context: int
    causal: bool = False
    wiring: str = "post"
    norm: NormSpec | str | None = "layer"
    activation: str = "relu"
    dropout: float = 0.1
    bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive_int(vocab_size=self.vocab_size, context=self.context)

    def parameter_count(self) -> int:
        """Return the number of parameters, without building the model."""
        return count_block_parameters(self) + (self.vocab_size + self.context) * self.width


class Encoder(BaseModule):
    r"""A post-norm transformer encoder with learned position embeddings.

    Formula:
        x = embedding[tokens] + position;  x = N1(x + A(x)), x = N2(x + M(x)) for each block

    Scope:
        Any over b s d. The model is not causal, so norms may share statistics along s.

    Shapes:
        tokens: (b, s), integers. mask: (b, s), True at real tokens. y: (b, s, width).

    Example:
        >>> import torch
        >>> encoder = Encoder(EncoderConfig(vocab_size=100, context=16, width=32, heads=4, depth=2))
        >>> tokens = torch.randint(100, (2, 10))
        >>> encoder(tokens, mask=tokens != 0).shape
        torch.Size([2, 10, 32])

    Papers:
        Vaswani et al. 2017, "Attention Is All You Need"; Devlin et al. 2018, "BERT: Pre-training of Deep
        Bidirectional Transformers for Language Understanding".
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        check_config(config, EncoderConfig, "an Encoder")
        check_model_size(config.parameter_count(), depth=config.depth)
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.width, init=config.init)
        self.position = Embedding(config.context, config.width, init=config.init, role="position")
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer=i) for i in range(config.depth))
        self.final_norm = final_norm(config)

    def forward(self, tokens: Tensor, *, mask: Tensor | None = None) -> Tensor:
        if is_fx_proxy(tokens):
            return self._fx_call(tokens, mask=mask)
        check_tokens(tokens, "an encoder", rank=2)
        if tokens.shape[1] > self.config.context:
            raise ShapeError(f"{tokens.shape[1]} tokens exceed the encoder's context of {self.config.context}")
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.embedding(tokens) + self.position(positions))  # b s d
        for block in self.blocks:
            x = block(x, mask=mask)
        out: Tensor = self.final_norm(x, mask=mask)
        return out
