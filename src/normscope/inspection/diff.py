"""Compare two models by name: structure, weights, tokenizers and behavior; or two x-rays, module by module."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from normscope.checks import as_path, check_positive_number
from normscope.comparing.comparison import ModelDiff, RuntimeDiff, compare_runtimes
from normscope.comparing.runtime import GPTRuntime, Runtime
from normscope.comparing.runtimes.onnx_runtime import OnnxRuntime
from normscope.comparing.structure import compare_configs
from normscope.comparing.weights import WeightsDiff, compare_weights
from normscope.data.tokenizers import Tokenizer
from normscope.diagnostics.diff.differences import RecordDiff
from normscope.inspection.arguments import check_model_settings, preserve_rng
from normscope.inspection.user_function import is_function
from normscope.inspection.xray import is_saved_xray, xray_diff
from normscope.interop.checkpoint import build_model
from normscope.models.gpt import GPTConfig
from normscope.models.presets import preset
from normscope.runs.read_source import ONNX_NAME, find_source, read_source

_OF_MODELS = ("checkpoint", "depth", "model")
"""Settings that also choose a model; all others are about how an x-ray is taken."""
_ROUNDING = 0.05
"""Largest difference of a weight that may be rounding or quantization, as a share of the largest value."""
_QUANTIZATION_ERROR = {"f16": 2**-11, "bf16": 2**-8, "q8_0": 0.01, "q6_k": 0.04, "q4_k": 0.13, "q4_0": 0.13}
"""Largest difference of a weight by the format of its file, as a share of the largest value of its tensor."""
_UNRELATED = 0.5
"""Share of the weights that differ, beyond which no single mistake is searched for."""


@dataclass(frozen=True)
class Side:
    """A model to compare, as far as it is known.

    Args:
        name: what it is called.
        config: its config in our terms.
        weights: its weights by our names, in their stored dtype.
        runtime: what computes its logits.
        tokenizer: its tokenizer in our terms.
        notices: notes, such as why something is missing.
    """

    name: str
    config: GPTConfig | None = None
    weights: Mapping[str, Tensor] | None = None
    runtime: Runtime | None = None
    tokenizer: Tokenizer | None = None
    notices: tuple[str, ...] = ()


def diff(
    one: str | Path, other: str | Path = "", *, xray: bool = False, tolerance: float | None = None, **settings: Any
) -> ModelDiff | RecordDiff:
    """Compare two models, like `normscope diff`.

    Two sources are compared by structure, weights, tokenizers, logits and greedy tokens; if they differ, the first
    layer that does is named, and the known mistake of a conversion that makes them equal. Saved x-rays, functions, and
    one model run in two ways are compared by their x-rays instead, module by module.

    Args:
        one, other: A run, a preset, a checkpoint of another tool, a saved x-ray, or package.module:function. Without
            the second, the first is compared with itself, run with dtype, compile or cached.
        xray: Compare the x-rays of two models.
        tolerance: Largest difference that counts as rounding; None for the default of the precision.
        settings: Fields of `XrayConfig`: checkpoint, depth and model choose a model, all others are about x-rays.
    """
    names = [str(as_path(name, "a model")) for name in (one, other)]
    is_by_xray = xray or not other or any(is_saved_xray(name) or is_function(name) for name in names)
    if is_by_xray or any(name not in _OF_MODELS for name in settings):
        return xray_diff(one, other, tolerance=tolerance, **settings)
    if tolerance is not None:
        check_positive_number(tolerance=tolerance)
    with preserve_rng():
        return compare_sides(read_side(one, **settings), read_side(other, **settings), tolerance)


def read_side(
    source: str | Path,
    *,
    checkpoint: str | int = "best",
    depth: int | None = None,
    model: Mapping[str, Any] | None = None,
) -> Side:
    """Read one of the two models; `checkpoint` is of a run, `depth` and `model` are settings of a preset."""
    onnx_folder = _onnx_folder(source)
    if onnx_folder is not None:
        return Side(
            str(source), runtime=OnnxRuntime(onnx_folder), notices=(f"{source}: only its behavior is compared",)
        )
    found = find_source(source)
    if found.kind == "preset":
        settings = {} if model is None else model
        check_model_settings(settings, **({} if depth is None else {"depth": f"depth={depth}"}))
        config = preset(str(source), **settings, **({} if depth is None else {"depth": depth}))
        return Side(str(source), config, notices=(f"{source} is a preset: it has no weights and no tokenizer",))
    read = read_source(source, checkpoint if found.kind == "run" else "best")
    runtime = GPTRuntime(build_model(read), read.tokenizer, str(source))
    runtime.precision = read.quantization or runtime.precision
    notices = read.notices
    if read.tokenizer is None and not notices:
        notices = (f"{source} has no tokenizer",)
    return Side(str(source), read.config, read.weights, runtime, read.tokenizer, notices)


def _onnx_folder(source: str | Path) -> Path | None:
    """The folder of an ONNX model, if the source is one, or the model.onnx in it."""
    path = as_path(source, "a model")
    folder = path.parent if path.name == ONNX_NAME else path
    return folder if (folder / ONNX_NAME).is_file() else None


def compare_sides(a: Side, b: Side, tolerance: float | None = None) -> ModelDiff:
    """Compare what is known of both sides."""
    structure = None if a.config is None or b.config is None else compare_configs(a.config, b.config)
    weights = None
    if a.weights is not None and b.weights is not None and a.config is not None:
        precisions = [side.runtime.precision.lower() for side in (a, b) if side.runtime is not None]
        tolerance_of_weights = max(_QUANTIZATION_ERROR.get(precision, 0.0) for precision in precisions)
        weights = compare_weights(a.weights, b.weights, a.config, tolerance_of_weights)
    runtime = RuntimeDiff(None, None)
    if a.runtime is not None and b.runtime is not None:
        special = () if a.tokenizer is None else tuple(a.tokenizer.special_tokens)
        runtime = compare_runtimes(
            a.runtime, b.runtime, special=special, tolerance=tolerance, causes=not _is_unrelated(weights)
        )
    return ModelDiff((a.name, b.name), structure, weights, runtime, (*a.notices, *b.notices))


def _is_unrelated(weights: WeightsDiff | None) -> bool:
    """Whether the weights are of different models: no mistake of a conversion could explain that."""
    if weights is None:
        return False
    other = [one for one in weights.tensors if not one.hint and one.relative > _ROUNDING]
    return not weights.count or len(other) > _UNRELATED * weights.count
