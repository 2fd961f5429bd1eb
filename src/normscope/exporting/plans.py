"""How each format is proved: its runtime, the weights to compare with, and what may differ."""

from dataclasses import replace
from pathlib import Path

from normscope.comparing.runtime import Runtime
from normscope.comparing.runtimes.llama_cpp import LlamaCppRuntime
from normscope.comparing.runtimes.nanogpt_runtime import NanoGPTRuntime
from normscope.comparing.runtimes.onnx_runtime import OnnxRuntime
from normscope.comparing.runtimes.page import PageRuntime
from normscope.comparing.runtimes.safetensors_runtime import SafetensorsRuntime
from normscope.comparing.runtimes.transformers_runtime import TransformersRuntime
from normscope.comparing.tokenizers import StringClass
from normscope.data.tokenizers import ByteTokenizer, Tokenizer
from normscope.exporting.gguf.rounding import llama_cpp_model, table_noise
from normscope.exporting.gguf.tokenizer import known_difference
from normscope.exporting.html import int8_names
from normscope.exporting.library_tokenizer import eos_of
from normscope.exporting.model_source import ModelSource
from normscope.exporting.onnx.model_graph import embedding_scale
from normscope.exporting.peft import open_adapter
from normscope.exporting.proof import ProofPlan
from normscope.exporting.safetensors_folder import DTYPES, converted
from normscope.generate.decoder import pack
from normscope.interop.checkpoint import model_from_weights
from normscope.interop.huggingface.families import family_of
from normscope.models.gpt import GPT

_LLAMA_CPP_TOLERANCES = {"f32": 1e-3, "f16": 0.05, "q8_0": 0.5, "q4_0": 0.5}
"""llama.cpp rounds activations to the format of the weights that they are multiplied with: q8_0 for q4_0."""
_NOISE_MARGIN = 3.0
"""How much more than `table_noise` may differ: other rounding errors change other values of the table."""


def _open_gguf(source: ModelSource, weights: str, path: Path) -> Runtime:
    config = source.model.config
    return LlamaCppRuntime(
        path,
        context=config.context,
        vocab_size=config.vocab_size,
        precision=weights,
        stop_token_id=source.tokenizer.start_token_id,
    )


def _open_nanogpt(source: ModelSource, weights: str, path: Path) -> Runtime:
    return NanoGPTRuntime(path, eos_token_id=eos_of(source.tokenizer))


def _int8_model(model: GPT, weights: str) -> GPT:
    """The model with the weights that the page computes with."""
    if weights != "int8":
        return model
    rounded = {}
    for name, tensor in model.state_dict().items():
        if name in int8_names(model):
            values, scale = pack(tensor, "int8")
            assert scale is not None
            tensor = values.float() * scale[:, None]
        rounded[name] = tensor
    return model_from_weights(model.config, rounded)


def _is_in(model: GPT, weights: str) -> bool:
    return weights == "stored" or all(one.dtype == DTYPES[weights] for one in model.parameters())


def _converted(model: GPT, weights: str) -> GPT:
    """The model with weights of another dtype."""
    if _is_in(model, weights):
        return model
    return model_from_weights(model.config, converted(converted(model.state_dict(), weights), "float32"))


def _huggingface_model(model: GPT, weights: str) -> GPT:
    """The model with the weights of the family in another dtype: gains may be stored as their difference from one."""
    if _is_in(model, weights):
        return model
    family, config = family_of(model.config), model.config
    rounded = converted(converted(family.to_theirs(config, model.state_dict()), weights), "float32")
    return model_from_weights(config, family.weights(config, rounded))


def _onnx_model(model: GPT, weights: str) -> GPT:
    """The model with an embedding scale that in float32 is that of its stored dtype."""
    scale = embedding_scale(model)
    if scale == model.config.embedding_scale:
        return model
    return model_from_weights(replace(model.config, embedding_scale=scale), model.state_dict())


def _llama_cpp_tolerance(reference: GPT, weights: str) -> float:
    return max(_LLAMA_CPP_TOLERANCES[weights], _NOISE_MARGIN * table_noise(reference))


def _nanogpt_strings(one: StringClass, tokenizer: Tokenizer) -> str | None:
    if isinstance(tokenizer, ByteTokenizer):
        return "nanoGPT's tokenizer of characters has ASCII only, and shows the bytes of other characters as U+FFFD"
    return None


HTML = ProofPlan("Node.js", lambda source, weights, path: PageRuntime(path), _int8_model)
HUGGING_FACE = ProofPlan(
    "transformers",
    lambda source, weights, path: TransformersRuntime(path),
    _huggingface_model,
    lambda model, weights: 1e-4,
)
GGUF = ProofPlan("llama.cpp", _open_gguf, llama_cpp_model, _llama_cpp_tolerance, known_difference, exact="f32")
ONNX = ProofPlan("onnxruntime", lambda source, weights, path: OnnxRuntime(path), _onnx_model, rounds=False)
SAFETENSORS = ProofPlan(
    "safetensors", lambda source, weights, path: SafetensorsRuntime(path), _converted, lambda model, weights: 1e-6
)
PEFT = ProofPlan("peft", open_adapter, tolerance=lambda model, weights: 1e-4)
NANOGPT = ProofPlan("nanoGPT", _open_nanogpt, known=_nanogpt_strings)
