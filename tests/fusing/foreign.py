"""Models and norms of other libraries, for `fuse`: small ones of transformers, and norms that are nobody's."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from tests.support import scramble

VOCABULARY = 48
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _decoder(config: str, model: str) -> Callable[[], Any]:
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**_SIZES))


def _gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=24, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]


def _t5() -> Any:
    config = transformers.T5Config(vocab_size=VOCABULARY, d_model=24, d_kv=12, d_ff=40, num_layers=2, num_heads=2)
    return transformers.T5ForConditionalGeneration(config)


MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "gpt2": (_gpt2, 5),
    "llama": (_decoder("LlamaConfig", "LlamaForCausalLM"), 5),
    "gemma": (_decoder("GemmaConfig", "GemmaForCausalLM"), 5),
    "gemma3": (_decoder("Gemma3TextConfig", "Gemma3ForCausalLM"), 13),
    "qwen3": (_decoder("Qwen3Config", "Qwen3ForCausalLM"), 9),
    "olmo": (_decoder("OlmoConfig", "OlmoForCausalLM"), 5),  # no parameters
    "cohere": (_decoder("CohereConfig", "CohereForCausalLM"), 3),
    "t5": (_t5, 12),
}
"""How each is made, and how many norms it has."""


def made(name: str) -> Any:
    """The model in eval mode, with gains that are neither 1 nor 0."""
    model = MODELS[name][0]()
    scramble(model, scale=0.2)
    return model.eval()


def logits(model: Any, tokens: Tensor) -> Tensor:
    named = {"decoder_input_ids": tokens} if isinstance(model, transformers.T5ForConditionalGeneration) else {}
    found: Tensor = model(input_ids=tokens, **named).logits
    return found


class OtherNorm(nn.Module):
    """A norm whose forward is given; it could be anyone's."""

    def __init__(
        self, formula: Callable[[Any, Tensor], Any], *parameters: str, width: int = 16, **settings: Any
    ) -> None:
        super().__init__()
        for name in parameters:
            setattr(self, name, nn.Parameter(torch.ones(width)))
        for name, value in settings.items():
            setattr(self, name, value)
        self.formula = formula

    def forward(self, x: Tensor) -> Any:
        return self.formula(self, x)


def mean_square(x: Tensor) -> Tensor:
    return x.pow(2).mean(-1, keepdim=True)


def rms(module: Any, x: Tensor) -> Any:
    return x * torch.rsqrt(mean_square(x) + 1e-5) * module.weight


def rms_with_setting(module: Any, x: Tensor) -> Any:
    return x * torch.rsqrt(mean_square(x) + module.my_epsilon) * module.scale


def bias_first(module: Any, x: Tensor) -> Any:
    return F.layer_norm(x, x.shape[-1:], module.gamma, module.beta, 3e-4)


def of_one_width(module: Any, x: Tensor) -> Any:
    return F.layer_norm(x, (module.width_of_a_row,), eps=1e-4)


def no_parameters(module: Any, x: Tensor) -> Any:
    return F.rms_norm(x, x.shape[-1:], None, 1e-3)


def counting(module: Any, x: Tensor) -> Any:
    module.calls += 1
    return rms(module, x)


def noting(module: Any, x: Tensor) -> Any:
    module.notes.append(x.shape)
    return rms(module, x)


def noisy(module: Any, x: Tensor) -> Any:
    return F.dropout(rms(module, x), 0.2, module.training)


def raising(module: Any, x: Tensor) -> Any:
    raise LookupError("only on Sundays")


def by_rank(module: Any, x: Tensor) -> Any:
    return rms(module, x) if x.dim() == 3 else x


def eps_outside(module: Any, x: Tensor) -> Any:
    return x / (mean_square(x).sqrt() + 1e-6) * module.weight


def half_a_gradient(module: Any, x: Tensor) -> Any:
    return x * torch.rsqrt(mean_square(x).detach() + 1e-5) * module.weight


def no_root_of_d(module: Any, x: Tensor) -> Any:
    return F.normalize(x, dim=-1) * module.weight


def unbiased(module: Any, x: Tensor) -> Any:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * module.weight


def clipped(module: Any, x: Tensor) -> Any:
    return rms(module, x).clamp(-2, 2)


def gain_without_sign(module: Any, x: Tensor) -> Any:
    return x * torch.rsqrt(mean_square(x) + 1e-5) * module.weight.abs()


def gain_with_limits(module: Any, x: Tensor) -> Any:
    return x * torch.rsqrt(mean_square(x) + 1e-5) * module.weight.clamp(-2, 2)


def as_float16_allows(module: Any, x: Tensor) -> Any:
    return rms(module, x.clamp(-65504, 65504))


def without_nan(module: Any, x: Tensor) -> Any:
    return rms(module, x).nan_to_num()


def over_the_batch(module: Any, x: Tensor) -> Any:
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt() * module.weight
