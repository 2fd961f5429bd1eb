"""Small layers, blocks and models with inputs of two shapes, for tests of torch's transforms."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.blocks.activations import ACTIVATIONS
from normscope.blocks.norm.norm_spec import IMAGE_NORMS
from normscope.blocks.residual import WIRINGS
from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.errors import ShapeError
from tests.support import randn, random_tokens, real_tokens, scramble

Inputs = tuple[Tensor, ...]
VOCABULARY = 11


@dataclass(frozen=True)
class Case:
    """A module and its inputs.

    `inputs(0)` has the shape of the example and `inputs(1)` another one; `dynamic` lists, per input, the dimensions
    that differ. `short` cases represent their kind in the default tests.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    dynamic: tuple[tuple[int, ...], ...]
    training: bool = True
    short: bool = False

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        module = self.make()
        scramble(module, seed=1)
        return module.train(self.training)


def updates_buffers(case: Case) -> bool:
    """Whether a call updates a buffer, which vmap would have to do for all calls at once."""
    return case.training and "num_batches_tracked" in _state(case)


def has_power_norm(case: Case) -> bool:
    """Whether it contains PowerNorm, whose backward pass is not a gradient and updates its statistics."""
    return case.training and "running_nu" in _state(case)


def may_be_one(case: Case) -> bool:
    """Whether the first size that differs may be 1: not if statistics are computed over it alone."""
    module = case.make()
    try:
        module.train(case.training)(*[x.narrow(case.dynamic[0][0], 0, 1) for x in case.inputs(1)])
    except ShapeError:
        return False
    return True


def has_state(case: Case) -> bool:
    return bool(_state(case))


@cache
def _state(case: Case) -> set[str]:
    """Last components of all parameter and buffer names."""
    with torch.device("meta"):
        module = case.make()
    return {name.split(".")[-1] for name, _ in (*module.named_parameters(), *module.named_buffers())}


class _Masked(nn.Module):
    """Passes the mask by keyword."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.module(x, mask=mask)
        return y


class _Loss(nn.Module):
    def __init__(self, model: ns.GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.model.loss(tokens, targets)


def _numbers(*shapes: tuple[int, ...]) -> Callable[[int], Inputs]:
    return lambda i: (randn(*shapes[i], seed=7 + i, dtype=torch.float32),)


def _text(width: int = 16) -> Callable[[int], Inputs]:
    return _numbers((3, 5, width), (4, 7, width))


def _masked_text(width: int = 16) -> Callable[[int], Inputs]:
    return lambda i: (*_text(width)(i), real_tokens([5, 2, 4] if i == 0 else [7, 1, 6, 3], 5 + 2 * i))


def _tokens(i: int) -> Inputs:
    return (random_tokens(VOCABULARY, 3 + i, 9 + 3 * i, seed=i),)


def _images(channels: int) -> Callable[[int], Inputs]:
    return _numbers((3, channels, 5, 4), (4, channels, 6, 5))


def _norms() -> list[Case]:
    text, images, table = ((0, 1),), ((0, 2, 3),), ((0,),)
    cases = [
        Case("LayerNorm", lambda: ns.LayerNorm(16), _text(), text, short=True),
        Case("LayerNorm of two axes", lambda: ns.LayerNorm((4, 6)), _numbers((3, 4, 6), (5, 4, 6)), table),
        Case("LayerNorm without bias", lambda: ns.LayerNorm(16, bias=False), _text(), text),
        Case("LayerNorm of one", lambda: ns.LayerNorm(16), _numbers((6, 16), (9, 16)), table),
        Case("RMSNorm", lambda: ns.RMSNorm(16), _text(), text, short=True),
        Case("RMSNorm, plain", lambda: ns.RMSNorm(16, elementwise_affine=False), _text(), text),
        Case("RMSNorm of long rows", lambda: ns.RMSNorm(1500), _numbers((3, 1500), (5, 1500)), table),
        Case("GroupNorm", lambda: ns.GroupNorm(2, 6), _images(6), images, short=True),
        Case("GroupNorm of places", lambda: ns.GroupNorm(2, 6), _numbers((3, 6), (5, 6)), table),
        Case("BatchNorm", lambda: ns.BatchNorm(6), _images(6), images, short=True),
        Case("BatchNorm1d", lambda: ns.BatchNorm1d(6, momentum=None), _numbers((5, 6), (7, 6)), table),
        Case("BatchNorm3d", lambda: ns.BatchNorm3d(2), _numbers((3, 2, 2, 3, 4), (5, 2, 2, 3, 4)), table),
        Case("InstanceNorm", lambda: ns.InstanceNorm(6), _images(6), images),
        Case("InstanceNorm2d", lambda: ns.InstanceNorm2d(6, 1e-5, 0.1, True, True), _images(6), images),
        Case("InstanceNorm1d of one", lambda: ns.InstanceNorm1d(6), _numbers((6, 5), (6, 8)), ((1,),)),
        Case("PowerNorm", lambda: ns.PowerNorm(16), _text(), text, short=True),
        Case("PowerNorm of images", lambda: ns.PowerNorm("[n] c [...]", c=6), _images(6), images),
        Case("masked LayerNorm", lambda: ns.LayerNorm(16), _masked_text(), ((0, 1), (0, 1)), short=True),
        Case("masked BatchNorm", lambda: ns.BatchNorm("[b s] d", d=16), _masked_text(), ((0, 1), (0, 1))),
        Case("masked PowerNorm", lambda: ns.PowerNorm(16), _masked_text(), ((0, 1), (0, 1))),
    ]
    scopes: list[tuple[str, str | None, dict[str, Any]]] = [
        ("b s [d]", "d", {"d": 16}),
        ("b s [d]", None, {}),
        ("b s (g [d])", "(g d)", {"g": 4, "d": 4}),
        ("b [s] d", "d", {"d": 16}),
        ("b [s d]", "d", {"d": 16}),
        ("[b] s [d]", "d", {"d": 16}),
        ("[b s d]", None, {}),
        ("[b] s d", None, {}),
        ("b s [d]", "s", {"s": 5}),
        ("[...] d", "d", {"d": 16}),
    ]
    for scope, affine, sizes in scopes:
        for mask in ("", "masked "):

            def make(scope: str = scope, affine: str | None = affine, sizes: dict[str, Any] = sizes) -> nn.Module:
                return ns.Norm(scope, affine=affine, **sizes)

            if affine == "s":
                inputs = _numbers((3, 5, 16), (4, 5, 16))
                if not mask:
                    cases.append(Case(f"Norm {scope!r}, a gain per position", make, inputs, table))
                continue
            given, dynamic = (_masked_text(), ((0, 1), (0, 1))) if mask else (_text(), text)
            cases.append(Case(f"{mask}Norm {scope!r}, affine={affine!r}", make, given, dynamic))
    return cases


def _parts() -> list[Case]:
    text, masked = ((0, 1),), ((0, 1), (0, 1))
    cases = [
        Case("Linear", lambda: ns.Linear(16, 8), _text(), text, short=True),
        Case("Embedding", lambda: ns.Embedding(VOCABULARY, 8), _tokens, text, short=True),
    ]
    for name in ACTIVATIONS:

        def mlp(name: str = name) -> nn.Module:
            return ns.MLP(16, activation=name)

        cases.append(Case(f"MLP {name}", mlp, _text(), text, short=name == "swiglu"))
    attention: dict[str, dict[str, object]] = {
        "": {},
        "of groups": {"kv_heads": 2},
        "in a window": {"window": 3},
        "in a wide window": {"window": 6},
        "with QK-norm": {"qk_norm": "layer"},
        "both ways": {"causal": False},
        "both ways in a window": {"causal": False, "window": 2},
        "with a cap": {"kv_heads": 2, "window": 3, "attention_cap": 0.7, "attention_scale": 0.9},
        "with all options": {"kv_heads": 2, "window": 3, "qk_norm": "rms", "rotary": (8, 32)},
    }
    for name, options in attention.items():

        def attend(options: dict[str, object] = options) -> nn.Module:
            rotary = ns.Rotary(8, 32) if "rotary" in options else None
            return ns.Attention(32, 4, **{**options, "rotary": rotary})  # type: ignore[arg-type]

        cases.append(Case(f"Attention {name}".strip(), attend, _text(32), text, short=name == "with all options"))
        cases.append(Case(f"masked Attention {name}".strip(), attend, _masked_text(32), masked))
    for wiring in WIRINGS:
        for norm in ("rms", "layer", "group", "power", None):

            def block(wiring: str = wiring, norm: str | None = norm) -> nn.Module:
                return ns.Block(ns.BlockConfig(width=32, heads=4, wiring=wiring, norm=norm))

            plain = wiring == "pre" and norm == "rms"
            cases.append(Case(f"Block {wiring} {norm}", block, _text(32), text, short=plain))
            cases.append(Case(f"masked Block {wiring} {norm}", block, _masked_text(32), masked))
    return cases


def _with_all_options(preset: Callable[..., ns.GPTConfig]) -> ns.GPT:
    scaling = RotaryScaling(kind="llama3", factor=8.0, original_context=8)
    layers = {"window": 3, "window_pattern": "SL", "rotary_pattern": "RRN", "local_rotary_base": 100.0}
    more = {"embedding_scale": 2.0, "attention_scale": 0.3, "attention_cap": 5.0, "bias": "qkv", "wiring": "branch"}
    sizes = {"vocab_size": VOCABULARY, "context": 32, "depth": 3, "width": 32, "heads": 4}
    return ns.GPT(preset(**sizes, **layers, **more, rotary_dim=4, rotary_scaling=scaling, activation="geglu-tanh"))


def _models() -> list[Case]:
    text = ((0, 1),)
    cases = []
    for preset in (ns.gpt2, ns.nanochat, ns.llama):

        def gpt(preset: Callable[..., ns.GPTConfig] = preset) -> ns.GPT:
            return ns.GPT(preset(vocab_size=VOCABULARY, context=32, depth=2, width=32, heads=4))

        if preset is ns.llama:
            cases.append(Case("llama with all options", partial(_with_all_options, preset), _tokens, text, short=True))
        name = preset.__name__
        cases.append(Case(name, gpt, _tokens, text, short=name == "nanochat"))
        cases.append(
            Case(
                f"masked {name}",
                lambda gpt=gpt: _Masked(gpt()),  # type: ignore[misc]
                lambda i: (*_tokens(i), real_tokens([9, 4, 6, 12][: 3 + i], 9 + 3 * i)),
                ((0, 1), (0, 1)),
            )
        )
        cases.append(
            Case(
                f"loss of {name}",
                lambda gpt=gpt: _Loss(gpt()),  # type: ignore[misc]
                lambda i: _tokens(i) * 2,
                ((0, 1), (0, 1)),
                short=name == "llama",
            )
        )
    encoder = ns.EncoderConfig(vocab_size=VOCABULARY, context=32, width=32, heads=4, depth=2, dropout=0.0)
    vit = ns.ViTConfig(image_size=8, patch=4, channels=1, width=32, heads=4, depth=1)
    images = _numbers((3, 1, 8, 8), (5, 1, 8, 8))
    cases.append(Case("Encoder", lambda: ns.Encoder(encoder), _tokens, text))
    cases.append(
        Case(
            "masked Encoder",
            lambda: _Masked(ns.Encoder(encoder)),
            lambda i: (*_tokens(i), real_tokens([9, 4, 6, 12][: 3 + i], 9 + 3 * i)),
            ((0, 1), (0, 1)),
        )
    )
    cases.append(Case("ViT", lambda: ns.ViT(vit), images, ((0,),), short=True))
    for norm in IMAGE_NORMS:
        config = ns.ConvNetConfig(image_size=8, channels=1, widths=(4, 8), norm=norm)
        cases.append(Case(f"ConvNet {norm}", lambda config=config: ns.ConvNet(config), images, ((0,),)))  # type: ignore[misc]
    return cases


def _all() -> list[Case]:
    cases = [*_norms(), *_parts(), *_models()]
    stateful = [
        case for case in cases if any(name in case.name for name in ("Batch", "Instance", "Power", "power", "batch"))
    ]
    in_eval_mode = [replace(case, name=f"{case.name}, eval mode", training=False) for case in stateful]
    return [*cases, *in_eval_mode]


CASES = _all()
SHORT = tuple(case.name for case in CASES if case.short)


def every_case(wanted: Callable[[Case], bool] = lambda _: True, quick: tuple[str, ...] = SHORT) -> pytest.MarkDecorator:
    """Parametrize over these cases: the quick ones by default, all of them in the exhaustive suite."""
    marked = [
        pytest.param(case, id=case.name, marks=() if case.name in quick else pytest.mark.exhaustive)
        for case in CASES
        if wanted(case)
    ]
    return pytest.mark.parametrize("case", marked)
