"""SmolLM3: Llama without rotary embeddings in some layers."""

from typing import Any

from normscope.errors import WeightsError
from normscope.interop.huggingface.families import _llama_like as like
from normscope.interop.huggingface.families.llama import LAYERS
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.layer_settings import layer_count, shortest, window_by_layer
from normscope.interop.huggingface.rotary_settings import rotary
from normscope.interop.huggingface.settings import Setting, Settings, biases, norm, value
from normscope.interop.huggingface.weight_table import WeightTable
from normscope.models.gpt import GPTConfig


def _rotary_pattern(settings: Settings, depth: int) -> str:
    """ "R" for layers with rotary embeddings, "N" for layers without."""
    period = value(settings, "no_rope_layer_interval", 4)
    listed = settings.get("no_rope_layers")  # 1 for layers with rotary embeddings, in spite of its name
    if listed is not None:
        if not isinstance(listed, list) or len(listed) < depth or set(map(str, listed)) - {"0", "1"}:
            raise WeightsError(f"unsupported setting no_rope_layers={listed!r:.80}: expected 0 or 1 for each layer")
        return "".join("R" if has_rotary else "N" for has_rotary in listed[:depth])
    if not isinstance(period, int) or period < 1:
        raise WeightsError(f"unsupported setting no_rope_layer_interval={period!r:.80}: expected a number of layers")
    return "".join("R" if (i + 1) % period else "N" for i in range(depth))


def _read(settings: Settings) -> dict[str, Any]:
    return {"rotary_pattern": shortest(_rotary_pattern(settings, layer_count(settings)))}


def _write(config: GPTConfig) -> dict[str, Any]:
    return {"no_rope_layers": [int(layer is not None) for layer in config.rotary_of_layers()]}


_WINDOW = window_by_layer(
    lambda settings, depth: _rotary_pattern(settings, depth).replace("R", "L").replace("N", "S"),
    switch="use_sliding_window",
    default=None,
)

FAMILY = Family(
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    fixed={"positions": "rotary"},
    settings=(
        *like.SIZES, like.HEAD_DIM, like.ACTIVATION, like.TIED, norm("rms_norm_eps", 1e-6, like.RMS),
        rotary(2e6), biases(), _WINDOW, Setting(("no_rope_layers", "no_rope_layer_interval"), _read, _write),
    ),
    weight_table=WeightTable(LAYERS, prefix="model.", ignored=like.IGNORED),
    harmless=frozenset({"max_window_layers"}),  # transformers does not read it
)  # fmt: skip
