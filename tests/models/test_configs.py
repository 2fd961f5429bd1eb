"""What all configs share: norms by name, scope or NormSpec, checked to fit."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

import normscope
from normscope.blocks.block import Block, BlockConfig
from normscope.blocks.norm.norm_spec import IMAGE_NORMS, TEXT_NORMS, NormSpec
from normscope.errors import ConfigError, NormscopeError, ScopeError
from normscope.models.convnet import ConvNet, ConvNetConfig
from normscope.models.encoder import Encoder, EncoderConfig
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.vit import ViT, ViTConfig
from tests.support import every_refusal

TEXT: dict[str, Any] = {"width": 16, "heads": 4}
CONFIGS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "block": (BlockConfig, TEXT),
    "gpt": (GPTConfig, {**TEXT, "vocab_size": 7, "context": 5}),
    "encoder": (EncoderConfig, {**TEXT, "vocab_size": 7, "context": 5}),
    "vit": (ViTConfig, {**TEXT, "image_size": 8, "patch": 2}),
    "convnet": (ConvNetConfig, {"image_size": 8, "widths": (8, 12)}),
}
MODELS: dict[str, Callable[..., nn.Module]] = {
    "block": Block, "gpt": GPT, "encoder": Encoder, "vit": ViT, "convnet": ConvNet,
}  # fmt: skip
every_config = pytest.mark.parametrize("kind", CONFIGS)
every_text = pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind != "convnet"])


def config(kind: str, **options: Any) -> Any:
    make, sizes = CONFIGS[kind]
    return make(**{**sizes, **options})


@every_config
def test_a_norm_is_a_name_a_scope_or_a_norm_spec(kind: str) -> None:
    norms = IMAGE_NORMS if kind == "convnet" else TEXT_NORMS
    scope = "n [c] h w" if kind == "convnet" else "b s [d]"
    assert config(kind, norm="group").norm == norms["group"]
    assert config(kind, norm=norms["group"]) == config(kind, norm="group")
    assert config(kind, norm=scope).norm == NormSpec(scope, affine=None)
    assert config(kind, norm=None).norm is None
    assert config(kind, norm="none").norm is None
    assert isinstance(config(kind).norm, NormSpec)
    assert hash(config(kind)) == hash(config(kind))


@every_text
def test_a_qk_norm_is_a_name_a_scope_or_a_norm_spec(kind: str) -> None:
    assert config(kind, qk_norm="rms-plain").qk_norm == TEXT_NORMS["rms-plain"]
    assert config(kind, qk_norm="b s h [e]").qk_norm == NormSpec("b s h [e]", affine=None)
    assert config(kind).qk_norm is None


@every_config
def test_the_model_has_the_norm_that_was_named(kind: str) -> None:
    assert "(g [" in repr(MODELS[kind](config(kind, norm="group")))
    assert "Norm(" not in repr(MODELS[kind](config(kind, norm="none"))).replace("NoNorm(", "")


@every_config
def test_a_norm_that_does_not_fit_is_refused_by_the_config(kind: str) -> None:
    image = kind == "convnet"
    scope, group = ("n [c h w]", "n (g [c]) [h w]") if image else ("b s [d]", "b s (g [d])")
    first = scope[0]
    for wrong, words in (
        (NormSpec(scope, affine=first), first),  # its size is that of the batch, which nobody knows beforehand
        (NormSpec(group, affine=None, sizes={"g": 5}), "g=5"),
        (NormSpec("x y [z] u v", affine=None), r"x y \[z\] u v"),
    ):
        with pytest.raises(NormscopeError, match=words):
            config(kind, norm=wrong)


@every_text
def test_a_qk_norm_that_does_not_fit_the_heads(kind: str) -> None:
    with pytest.raises(ScopeError, match="g=3"):
        config(kind, qk_norm=NormSpec("b s h (g [e])", affine=None, sizes={"g": 3}))
    eight = NormSpec("b s h [e]", affine="h e", sizes={"h": 4})
    assert config(kind, qk_norm=eight).qk_norm == eight
    with pytest.raises(NormscopeError):
        config(kind, kv_heads=2, qk_norm=eight)  # the queries' four heads fit, the keys' two do not


def made(kind: str, given: Any) -> Callable[[], object]:
    return lambda: MODELS[kind](given)


@every_refusal(
    (
        "name",
        ConfigError,
        r"a GPT expects a GPTConfig, but got 'gpt2'; .*preset such as gpt2\(\)",
        made("gpt", "gpt2"),
    ),
    ("nothing", ConfigError, "a GPT expects a GPTConfig, but got None", made("gpt", None)),
    ("function", ConfigError, r"got the function gpt2; call it: gpt2\(\)", made("gpt", normscope.gpt2)),
    ("class", ConfigError, r"got the class GPTConfig; call it: GPTConfig\(...\)", made("gpt", GPTConfig)),
    ("other", ConfigError, r"got an EncoderConfig; make one with GPTConfig\(...\)", made("gpt", config("encoder"))),
    ("plain", ConfigError, "got a BlockConfig", made("gpt", config("block"))),
    ("dict", ConfigError, "an Encoder expects an EncoderConfig, but got a dict", made("encoder", {})),
    ("model", ConfigError, "got a GPT; make one with", made("encoder", GPT(config("gpt")))),
    ("vit", ConfigError, "a ViT expects a ViTConfig, but got 3", made("vit", 3)),
    (
        "convnet",
        ConfigError,
        "a ConvNet expects a ConvNetConfig, but got a ViTConfig",
        made("convnet", config("vit")),
    ),
    ("block", ConfigError, "a Block expects a BlockConfig, but got None", made("block", None)),
)
def test_models_refuse_other_configs(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
