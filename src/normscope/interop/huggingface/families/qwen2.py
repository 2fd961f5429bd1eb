"""Qwen2 and Qwen2.5: Llama with biases of queries, keys and values."""

from typing import Any

from normscope.interop.huggingface.families import _llama_like as like
from normscope.interop.huggingface.families.llama import LAYERS
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.layer_settings import window_by_layer
from normscope.interop.huggingface.rotary_settings import rotary
from normscope.interop.huggingface.settings import Settings, norm, value
from normscope.interop.huggingface.weight_table import WeightTable


def _pattern(settings: Settings, depth: int) -> str:
    first: Any = value(settings, "max_window_layers", 28)
    return "".join("S" if i >= first else "L" for i in range(depth))


WINDOW = window_by_layer(_pattern, "max_window_layers", switch="use_sliding_window")

FAMILY = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    fixed={"positions": "rotary", "bias": "qkv"},
    settings=(
        *like.SIZES, like.HEAD_DIM, like.ACTIVATION, like.UNTIED, norm("rms_norm_eps", 1e-6, like.RMS), rotary(),
        WINDOW,
    ),
    weight_table=WeightTable(LAYERS, prefix="model.", ignored=like.IGNORED),
)  # fmt: skip
