"""Models of transformers, small, with the starts that they come with."""

from typing import Any

import torch
import torch.nn.functional as F

from tests.diagnostics.cases import Objective, Scene, running, well
from tests.diagnostics.tasks import TOKENS, Batches, count_up, images, predict, texts

NEEDS = "transformers"


def _made(config: str, model: str, **settings: Any) -> Any:
    """Imported when it is needed, for it takes seconds."""
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**settings)).train()


def gpt2(width: int = 32, depth: int = 3, **more: Any) -> Any:
    sizes = {"vocab_size": TOKENS, "n_positions": 32, "n_embd": width, "n_layer": depth, "n_head": 4}
    return _made("GPT2Config", "GPT2LMHeadModel", **sizes, bos_token_id=0, eos_token_id=0, **more)


def llama(width: int = 32, depth: int = 3, **more: Any) -> Any:
    sizes = _sizes(width, depth) | {"vocab_size": TOKENS, "num_key_value_heads": 2, "max_position_embeddings": 32}
    return _made("LlamaConfig", "LlamaForCausalLM", **sizes, pad_token_id=0, **more)


def bert(width: int = 32, depth: int = 3, **more: Any) -> Any:
    sizes = _sizes(width, depth) | {"vocab_size": TOKENS, "max_position_embeddings": 32, "num_labels": 4}
    return _made("BertConfig", "BertForSequenceClassification", **sizes, pad_token_id=0, **more)


def vit(width: int = 32, depth: int = 3, **more: Any) -> Any:
    sizes = _sizes(width, depth) | {"image_size": 16, "patch_size": 4, "num_channels": 1, "num_labels": 4}
    return _made("ViTConfig", "ViTForImageClassification", **sizes, **more)


def _sizes(width: int, depth: int) -> dict[str, int]:
    return {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": 4,
    }


@well((0, 1, 2), NEEDS)
def transformers_gpt2(seed: int) -> Scene:
    model: Any = gpt2(width=(16, 32, 64)[seed])
    return running(model, predict(model), trained=30 * (seed % 2))


@well((0, 1), NEEDS)
def transformers_gpt2_that_computes_its_own_loss(seed: int) -> Scene:
    model: Any = gpt2()

    def batch(number: int) -> Objective:
        tokens = texts(number)[0]
        return lambda: model(tokens, labels=tokens).loss

    return running(model, batch)


@well((0, 1, 2), NEEDS)
def transformers_llama(seed: int) -> Scene:
    model: Any = llama(width=(16, 32, 64)[seed])
    return running(model, predict(model), trained=30 * (seed % 2))


@well((0, 1, 2), NEEDS)
def transformers_bert(seed: int) -> Scene:
    model: Any = bert(width=(16, 32, 64)[seed])
    return running(model, count_up(model), trained=30 * (seed % 2))


@well((0, 1), NEEDS)
def transformers_bert_without_use_of_its_pooler(seed: int) -> Scene:
    """The pooler runs and nothing reads it: a note."""
    model: Any = bert().bert
    return running(model, lambda i: lambda: model(texts(i)[0]).last_hidden_state.square().mean())


@well((0, 1), NEEDS)
def transformers_vit(seed: int) -> Scene:
    model = vit(width=(32, 64)[seed])
    return running(model, label_images(model), trained=20 * seed)


@well((0,), NEEDS)
def transformers_gpt2_eager_in_eval(seed: int) -> Scene:
    model: Any = gpt2(attn_implementation="eager").eval()

    def run() -> None:
        with torch.no_grad():
            model(texts(seed)[0])

    return model, run


def _register(name: str, config: str, model: str, of: str, **settings: Any) -> None:
    """More families, at the start that they come with, or after thirty steps."""

    def make(seed: int) -> Scene:
        made = _made(config, model, **settings)
        return running(made, predict(made) if of == "text" else label_images(made), trained=30 * seed)

    make.__name__ = f"transformers_{name}"
    well((0, 1), NEEDS)(make)


def label_images(model: Any) -> Batches:
    def batch(number: int) -> Objective:
        pictures, labels = images(number, size=16)
        return lambda: F.cross_entropy(model(pictures).logits, labels)

    return batch


_TEXT = _sizes(32, 3) | {"vocab_size": TOKENS, "max_position_embeddings": 32, "pad_token_id": 0}
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
