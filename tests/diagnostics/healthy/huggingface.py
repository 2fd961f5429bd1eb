"""Small Hugging Face models with their default initialization."""

from typing import Any

import torch
import torch.nn.functional as F

from tests.diagnostics.cases import Objective, Setup, healthy, two_training_steps
from tests.diagnostics.tasks import VOCAB_SIZE, Batches, classify_stride, images, predict_next, texts

TRANSFORMERS = "transformers"


def _build(config: str, model: str, **settings: Any) -> Any:
    """Build a model; the import is lazy because it takes seconds."""
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**settings)).train()


def gpt2(width: int = 32, depth: int = 3, **more: Any) -> Any:
    sizes = {"vocab_size": VOCAB_SIZE, "n_positions": 32, "n_embd": width, "n_layer": depth, "n_head": 4}
    return _build("GPT2Config", "GPT2LMHeadModel", **sizes, bos_token_id=0, eos_token_id=0, **more)


def llama(width: int = 32, depth: int = 3, **more: Any) -> Any:
    sizes = _sizes(width, depth) | {"vocab_size": VOCAB_SIZE, "num_key_value_heads": 2, "max_position_embeddings": 32}
    return _build("LlamaConfig", "LlamaForCausalLM", **sizes, pad_token_id=0, **more)


def bert(width: int = 32, depth: int = 3, **more: Any) -> Any:
    sizes = _sizes(width, depth) | {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 32, "num_labels": 4}
    return _build("BertConfig", "BertForSequenceClassification", **sizes, pad_token_id=0, **more)


def vit(width: int = 32, depth: int = 3, **more: Any) -> Any:
    sizes = _sizes(width, depth) | {"image_size": 16, "patch_size": 4, "num_channels": 1, "num_labels": 4}
    return _build("ViTConfig", "ViTForImageClassification", **sizes, **more)


def _sizes(width: int, depth: int) -> dict[str, int]:
    return {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": 4,
    }


@healthy((0, 1, 2), TRANSFORMERS, quick=False)
def huggingface_gpt2(seed: int) -> Setup:
    model: Any = gpt2(width=(16, 32, 64)[seed])
    return two_training_steps(model, predict_next(model), after=30 * (seed % 2))


@healthy((0, 1), TRANSFORMERS)
def huggingface_gpt2_with_built_in_loss(seed: int) -> Setup:
    model: Any = gpt2()

    def batch(number: int) -> Objective:
        tokens = texts(number)[0]
        return lambda: model(tokens, labels=tokens).loss

    return two_training_steps(model, batch)


@healthy((0, 1, 2), TRANSFORMERS, quick=False)
def huggingface_llama(seed: int) -> Setup:
    model: Any = llama(width=(16, 32, 64)[seed])
    return two_training_steps(model, predict_next(model), after=30 * (seed % 2))


@healthy((0, 1, 2), TRANSFORMERS, quick=False)
def huggingface_bert(seed: int) -> Setup:
    model: Any = bert(width=(16, 32, 64)[seed])
    return two_training_steps(model, classify_stride(model), after=30 * (seed % 2))


@healthy((0, 1), TRANSFORMERS)
def huggingface_bert_unused_pooler(seed: int) -> Setup:
    """The pooler runs but its output is unused: a note."""
    model: Any = bert().bert
    return two_training_steps(model, lambda i: lambda: model(texts(i)[0]).last_hidden_state.square().mean())


@healthy((0, 1), TRANSFORMERS)
def huggingface_vit(seed: int) -> Setup:
    model = vit(width=(32, 64)[seed])
    return two_training_steps(model, label_images(model), after=20 * seed)


@healthy((0,), TRANSFORMERS)
def huggingface_gpt2_eager_attention_eval(seed: int) -> Setup:
    model: Any = gpt2(attn_implementation="eager").eval()

    def run() -> None:
        with torch.no_grad():
            model(texts(seed)[0])

    return model, run


_LIKE_OTHERS = ("qwen3", "neox")
"""Families that differ little from another one that the default suite includes."""


def _register(name: str, config: str, model: str, data: str, **settings: Any) -> None:
    """Register another family, at initialization (seed 0) and after 30 steps (seed 1)."""

    def make(seed: int) -> Setup:
        built = _build(config, model, **settings)
        return two_training_steps(
            built, predict_next(built) if data == "text" else label_images(built), after=30 * seed
        )

    make.__name__ = f"huggingface_{name}"
    healthy((0, 1), TRANSFORMERS, quick=name not in _LIKE_OTHERS)(make)


def label_images(model: Any) -> Batches:
    def batch(number: int) -> Objective:
        x, labels = images(number, size=16)
        return lambda: F.cross_entropy(model(x).logits, labels)

    return batch


_TEXT = _sizes(32, 3) | {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 32, "pad_token_id": 0}
_STAGES = {"num_channels": 1, "num_labels": 4, "hidden_sizes": [8, 16, 32], "depths": [1, 2, 1]}
_register("gemma2", "Gemma2Config", "Gemma2ForCausalLM", "text", **_TEXT, num_key_value_heads=2, head_dim=8)
_register("qwen3", "Qwen3Config", "Qwen3ForCausalLM", "text", **_TEXT, num_key_value_heads=2, head_dim=8)
_register("opt", "OPTConfig", "OPTForCausalLM", "text", **_TEXT, ffn_dim=64, word_embed_proj_dim=32)
_register("bloom", "BloomConfig", "BloomForCausalLM", "text", **_TEXT, n_layer=3, n_head=4)
_register("neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", "text", **_TEXT)
_register("resnet", "ResNetConfig", "ResNetForImageClassification", "images", embedding_size=8, **_STAGES)
_register(
    "convnext", "ConvNextConfig", "ConvNextForImageClassification", "images", patch_size=2, num_stages=3, **_STAGES
)
