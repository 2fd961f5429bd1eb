"""The block formats of quantized GGUF tensors: a scale per block of values, which have a few bits each.

Each function takes the blocks as bytes, (n, bytes of a block), and returns their values, (n, values of a block), with
the same float32 operations in the same order as llama.cpp, so that the results are equal to the bit.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_CHUNK = 2**18
"""Values that are dequantized at a time, so that the intermediate results stay small."""


class BlockFormat(NamedTuple):
    """How a tensor type stores its values.

    Args:
        values, nbytes: number of values and of bytes of a block.
        dequantize: converts blocks to values; None if the values are stored as `dtype`.
        dtype: dtype of the tensor that is read.
    """

    name: str
    values: int
    nbytes: int
    dequantize: Callable[[Tensor], Tensor] | None = None
    dtype: torch.dtype = torch.float32


def dequantize(block_format: BlockFormat, data: Tensor) -> Tensor:
    """Convert the bytes of blocks to a flat float32 tensor."""
    assert block_format.dequantize is not None
    blocks = data.view(-1, block_format.nbytes)
    values = torch.empty(len(blocks), block_format.values)
    step = max(1, _CHUNK // block_format.values)
    for start in range(0, len(blocks), step):
        values[start : start + step] = block_format.dequantize(blocks[start : start + step])
    return values.flatten()


def _half(blocks: Tensor, start: int) -> Tensor:
    """The float16 at this byte of each block as float32, (n, 1)."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(data: Tensor, dim: int) -> Tensor:
    """The low four bits of the bytes, followed by the high ones."""
    return torch.cat([data & 15, data >> 4], dim)


def _q8_0(blocks: Tensor) -> Tensor:
    """Scale (2 bytes), 32 signed values."""
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8)


def _q4_0(blocks: Tensor) -> Tensor:
    """Scale (2), 32 values of 4 bits from -8 on: the first half in the low bits."""
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:], 1).float() - 8)


def _q4_k(blocks: Tensor) -> Tensor:
    """Scale and scale of the minima (2 + 2), 8 scales and minima of 6 bits (12), 8 x 32 values of 4 bits (128)."""
    low, middle, high = blocks[:, 4:16].view(-1, 3, 4).unbind(1)
    scales = torch.cat([low & 63, (high & 15) | (low >> 6) << 4], 1)
    minima = torch.cat([middle & 63, (high >> 4) | (middle >> 6) << 4], 1)
    values = _nibbles(blocks[:, 16:].view(-1, 4, 32), 2).view(-1, 8, 32)
    scaled = (_half(blocks, 0) * scales).unsqueeze(2) * values
    return (scaled - (_half(blocks, 2) * minima).unsqueeze(2)).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    """256 values of 6 bits from -32 on: the low four (128), the high two (64); 16 signed scales (16), a scale (2)."""
    low = _nibbles(blocks[:, :128].view(-1, 2, 64), 2).view(-1, 2, 4, 32)
    packed = blocks[:, 128:192].view(-1, 2, 32)
    high = torch.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], 2)
    values = (low | high << 4).view(-1, 16, 16).float() - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    return (scales.unsqueeze(2) * values).flatten(1)


BLOCK_FORMATS = {
    0: BlockFormat("F32", 1, 4),
    1: BlockFormat("F16", 1, 2, dtype=torch.float16),
    2: BlockFormat("Q4_0", 32, 18, _q4_0),
    8: BlockFormat("Q8_0", 32, 34, _q8_0),
    12: BlockFormat("Q4_K", 256, 144, _q4_k),
    14: BlockFormat("Q6_K", 256, 210, _q6_k),
    30: BlockFormat("BF16", 1, 2, dtype=torch.bfloat16),
}
"""The supported tensor types by their number."""

OTHER_TYPES = {
    3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8",
    25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
"""Names of the tensor types that are not supported."""
