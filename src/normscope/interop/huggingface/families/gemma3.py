"""Gemma 3, its text model: QK-norm, and a sliding window with its own rotary base in five of six layers."""

from normscope.errors import WeightsError
from normscope.interop.huggingface.families import _gemma_like as gemma
from normscope.interop.huggingface.families import _llama_like as like
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.layer_settings import window_by_layer
from normscope.interop.huggingface.rotary_settings import rotary
from normscope.interop.huggingface.settings import Settings, capped, norm, value
from normscope.interop.huggingface.weight_table import WeightTable


def _pattern(settings: Settings, depth: int) -> str:
    period = value(settings, "sliding_window_pattern", 6)
    if not isinstance(period, int) or period < 1:
        raise WeightsError(f"unsupported setting sliding_window_pattern={period!r:.80}: expected a number of layers")
    return "".join("S" if (i + 1) % period else "L" for i in range(depth))


FAMILY = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    fixed=gemma.FIXED,
    settings=(
        *gemma.SETTINGS, rotary(1e6, local_base=10000.0),
        norm("rms_norm_eps", 1e-6, like.RMS, qk_norm=like.RMS),
        window_by_layer(_pattern, "sliding_window_pattern"),
        capped("logit_cap", "final_logit_softcapping", None),
    ),
    weight_table=WeightTable(
        {**gemma.LAYERS, **like.adding_one(like.QK_NORMS)}, prefix="model.", ignored=like.IGNORED
    ),
    harmless=gemma.HARMLESS,
)  # fmt: skip
