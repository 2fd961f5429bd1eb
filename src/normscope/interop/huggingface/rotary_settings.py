"""The settings of rotary embeddings in a config.json.

`rope_parameters` of transformers 5 has all of them. Earlier versions have `rope_scaling`, and `rope_theta` beside it;
this form is written, because it can be read by both.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.checks import is_integer, is_number
from normscope.errors import WeightsError
from normscope.interop.huggingface.settings import Setting, Settings, value
from normscope.models.gpt import GPTConfig

_THEIRS = {
    "factor": "factor",
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
    "original_max_position_embeddings": "original_context",
    "beta_slow": "low_frequency_factor",
    "beta_fast": "high_frequency_factor",
    "attention_factor": "attention_factor",
    "short_factor": "divisors",
}
_KINDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_slow", "beta_fast", "attention_factor"),
    "longrope": ("factor", "original_max_position_embeddings", "short_factor", "attention_factor"),
}
"""The kinds of scaling, and their parameters."""
_HARMLESS = (
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings",
    "finetuned",  # in files of 2023
)  # fmt: skip


def rotary(
    base: float = 10000.0,
    *,
    base_name: str = "rope_theta",
    part_name: str = "partial_rotary_factor",
    part: float = 1.0,
    partial: bool = False,
    local_base: float | None = None,
    kinds: Collection[str] = _KINDS.keys(),
) -> Setting:
    """The base and scaling of rotary embeddings.

    Args:
        base: the default of the base.
        base_name: the setting of the base, where it is not in `rope_parameters`.
        part_name: the setting of the rotated fraction of a head, likewise.
        part: the default of this fraction.
        partial: whether fractions below one are supported.
        local_base: the default of the base in layers with a window; None if all layers are alike.
        kinds: the kinds of scaling that the family has.
    """
    local_name = "rope_local_base_freq"
    local = () if local_base is None else (local_name,)
    usual = ("rope_theta", "partial_rotary_factor")
    names = (
        "rope_parameters",
        "rope_scaling",
        base_name,
        part_name,
        "original_max_position_embeddings",
        *usual,
        *local,
    )

    def read(settings: Settings) -> dict[str, Any]:
        rope = _parameters(settings)
        found: dict[str, Any] = {}
        if local_base is not None:
            local = rope.get("sliding_attention") or {}
            if _scaling(settings, local) is not None:
                raise WeightsError(f"unsupported setting rope_parameters.sliding_attention={dict(local)!r:.80}")
            found["local_rotary_base"] = _first(local.get("rope_theta"), settings.get(local_name), local_base)
            rope = rope.get("full_attention") or {key: rope[key] for key in rope if key != "sliding_attention"}
        found["rotary_base"] = _first(rope.get("rope_theta"), settings.get(base_name), base)
        found["rotary_scaling"] = scaling = _scaling(settings, rope, kinds)
        if scaling is not None and scaling.kind == "longrope":  # beyond, the frequencies are others
            found["context"] = min(value(settings, "max_position_embeddings"), scaling.original_context)
        fraction = _first(rope.get("partial_rotary_factor"), settings.get(part_name), part)
        for name, counts in zip(usual, (found["rotary_base"], fraction), strict=True):
            if name not in (base_name, part_name) and _first(settings.get(name), counts) != counts:
                raise WeightsError(f"unsupported setting {name}={settings[name]!r:.80}: expected {counts!r:.80}")
        if partial:
            found["rotary_dim"] = _rotary_dim(settings, fraction)
        elif fraction != 1:
            raise WeightsError(f"unsupported setting {part_name}={fraction!r:.80}: expected 1.0")
        return found

    def write(config: GPTConfig) -> dict[str, Any]:
        scaling = config.rotary_scaling
        known = scaling if scaling is None or scaling.kind in kinds else None
        written: dict[str, Any] = {base_name: config.rotary_base, **_written(known)}
        if local_base is not None:
            written[local_name] = _first(config.local_rotary_base, config.rotary_base)
        if partial:
            head_dim = config.head_sizes[2]
            rotated = _first(config.rotary_dim, head_dim)
            exact = rotated / head_dim
            # It is read as int(head_dim * factor).
            written[part_name] = exact if int(head_dim * exact) == rotated else (rotated + 0.5) / head_dim
        return written

    return Setting(names, read, write)


def _parameters(settings: Settings) -> Mapping[str, Any]:
    for name in ("rope_scaling", "rope_parameters"):  # in the order of transformers
        rope = settings.get(name)
        if rope:
            if not isinstance(rope, Mapping):
                raise WeightsError(f"unsupported setting {name}={rope!r:.80}: it must be a dict")
            return rope
    return {}


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _scaling(settings: Settings, rope: Any, kinds: Collection[str] = _KINDS.keys()) -> RotaryScaling | None:
    if not isinstance(rope, Mapping):
        raise WeightsError(f"unsupported rotary settings {rope!r:.80}: they must be a dict")
    kind = rope.get("rope_type", rope.get("type", "default"))  # `type` in older files
    kind = "longrope" if kind == "su" else kind  # in the first files of Phi-3
    if not isinstance(kind, str) or kind not in kinds:
        raise WeightsError(f"unsupported setting rope_type={kind!r:.80}: expected one of {', '.join(kinds)}")
    if kind in _COMPLETE:
        rope = _COMPLETE[kind](settings, rope)
    for name, found in rope.items():
        if name not in _KINDS[kind] and name not in _HARMLESS and found is not None:
            raise WeightsError(f"unsupported setting {name}={found!r:.80} of rotary embeddings of type {kind!r}")
    if kind == "default":
        return None
    given = {own: rope[name] for name, own in _THEIRS.items() if name in _KINDS[kind] and rope.get(name) is not None}
    if kind == "llama3" and settings.get("original_max_position_embeddings") is not None:
        given["original_context"] = settings["original_max_position_embeddings"]
    missing = sorted(name for name in _KINDS[kind] if _THEIRS[name] not in given)
    if missing:
        raise WeightsError(f"the rotary embeddings of type {kind!r} have no {missing[0]!r}")
    return RotaryScaling(kind=kind, **given)  # type: ignore[arg-type]


def _complete_yarn(settings: Settings, rope: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of "yarn" with the defaults of transformers, which depend on others."""
    found = {"beta_slow": 1.0, "beta_fast": 32.0, **{name: value for name, value in rope.items() if value is not None}}
    found["original_max_position_embeddings"] = _original_context(settings, rope)
    mscales = found.pop("mscale", None), found.pop("mscale_all_dim", None)
    if found.get("truncate") is True:
        del found["truncate"]
    factor = found.get("factor")
    if "attention_factor" not in found and isinstance(factor, int | float) and factor > 0:
        top, bottom = mscales if all(isinstance(one, int | float) and one > 0 for one in mscales) else (1.0, 0.0)
        grown = 0.1 * math.log(max(factor, 1.0))
        found["attention_factor"] = (top * grown + 1) / (bottom * grown + 1)
    return found


def _complete_longrope(settings: Settings, rope: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of "longrope" for texts that are no longer than those of the pretraining."""
    original, longest = _original_context(settings, rope), settings.get("max_position_embeddings")
    found = {name: value for name, value in rope.items() if name != "long_factor" and value is not None}
    if not is_integer(original, least=2) or not is_integer(longest):
        return found
    found["original_max_position_embeddings"] = original
    ratio = found.pop("factor", longest / original)
    if "attention_factor" not in found and is_number(ratio):
        found["attention_factor"] = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
    if isinstance(found.get("short_factor"), list):
        found["short_factor"] = tuple(found["short_factor"])
    return {**found, "factor": 1.0}


def _original_context(settings: Settings, rope: Mapping[str, Any]) -> Any:
    name = "original_max_position_embeddings"
    return _first(settings.get(name), rope.get(name), settings.get("max_position_embeddings"))


_COMPLETE = {"yarn": _complete_yarn, "longrope": _complete_longrope}


def _written(scaling: RotaryScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"rope_scaling": None}
    found = {name: getattr(scaling, _THEIRS[name]) for name in _KINDS[scaling.kind]}
    if scaling.kind != "longrope":
        return {"rope_scaling": {"rope_type": scaling.kind, **found}}
    del found["factor"]
    found |= {"short_factor": list(scaling.divisors), "long_factor": list(scaling.divisors)}
    original = scaling.original_context  # which Phi-3 reads from outside
    return {"rope_scaling": {"rope_type": scaling.kind, **found}, "original_max_position_embeddings": original}


def _rotary_dim(settings: Settings, fraction: Any) -> int:
    heads, width, head_dim = (settings.get(name) for name in ("num_attention_heads", "hidden_size", "head_dim"))
    if not (isinstance(fraction, int | float) and 0 < fraction <= 1):
        raise WeightsError(f"unsupported rotated fraction of a head, {fraction!r:.80}: expected above 0 and at most 1")
    if head_dim is None and isinstance(heads, int) and isinstance(width, int) and heads > 0:
        head_dim = width // heads
    return int(head_dim * fraction) if isinstance(head_dim, int) else 0
