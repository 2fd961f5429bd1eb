"""Mistakes, each next to the error that it raises: always of the one family, always saying what to do."""

from typing import Any

import numpy as np
import pytest
import torch

import normscope as ns
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, NormscopeError, ScopeError, ShapeError
from tests.blocks.norm.cases import mostly_on

pytestmark = mostly_on("fused")

# What is called, with which arguments, what it raises, and a word of the message.
Mistake = tuple[Any, tuple[Any, ...], dict[str, Any], type[NormscopeError], str]

SETTINGS: dict[str, Mistake] = {
    "layer-negative-eps": (ns.LayerNorm, (4, -1e-5), {}, ConfigError, "eps"),
    "layer-nan-eps": (ns.LayerNorm, (4, float("nan")), {}, ConfigError, "eps"),
    "layer-infinite-eps": (ns.LayerNorm, (4, float("inf")), {}, ConfigError, "eps"),
    "layer-eps-text": (ns.LayerNorm, (4, "1e-5"), {}, ConfigError, "eps"),
    "rms-eps-true": (ns.RMSNorm, (4, True), {}, ConfigError, "eps"),
    "layer-empty-shape": (ns.LayerNorm, ((),), {}, ConfigError, "normalized_shape"),
    "layer-fraction": (ns.LayerNorm, (2.5,), {}, ConfigError, "normalized_shape"),
    "layer-zero": (ns.LayerNorm, ([0],), {}, ConfigError, "normalized_shape"),
    "layer-negative": (ns.LayerNorm, (-3,), {}, ConfigError, "normalized_shape"),
    "layer-true": (ns.LayerNorm, (True,), {}, ConfigError, "normalized_shape"),
    "layer-none": (ns.LayerNorm, (None,), {}, ConfigError, "normalized_shape"),
    "layer-list-of-text": (ns.LayerNorm, (["4"],), {}, ConfigError, "normalized_shape"),
    "layer-number-as-text": (ns.LayerNorm, ("4",), {}, ScopeError, "'4'"),
    "layer-shape-and-sizes": (ns.LayerNorm, (4,), {"d": 4}, ConfigError, "d="),
    "rms-fraction": (ns.RMSNorm, (2.5,), {}, ConfigError, "normalized_shape"),
    "rms-bias": (ns.RMSNorm, (4,), {"bias": False}, ConfigError, "bias"),
    "layer-scope-without-brackets": (ns.LayerNorm, ("n c",), {}, ScopeError, "brackets"),
    "layer-scope-without-size": (ns.LayerNorm, ("n [c]",), {}, ScopeError, "give it"),
    "layer-scope-over-any-axes": (ns.LayerNorm, ("n [...]",), {}, ScopeError, "fixed size"),
    "layer-scope-unknown-size": (ns.LayerNorm, ("n [c]",), {"c": 3, "d": 4}, ScopeError, "'d'"),
    "layer-scope-size-text": (ns.LayerNorm, ("n [c]",), {"c": "3"}, ScopeError, "positive integer"),
    "group-zero": (ns.GroupNorm, (0, 4), {}, ConfigError, "num_groups"),
    "group-negative": (ns.GroupNorm, (-2, 4), {}, ConfigError, "num_groups"),
    "group-fraction": (ns.GroupNorm, (2.0, 4), {}, ConfigError, "num_groups"),
    "group-none": (ns.GroupNorm, (None, 4), {}, ConfigError, "num_groups"),
    "group-no-channels": (ns.GroupNorm, (2,), {}, ConfigError, "num_channels"),
    "group-zero-channels": (ns.GroupNorm, (2, 0), {}, ConfigError, "num_channels"),
    "group-text-channels": (ns.GroupNorm, (2, "6"), {}, ConfigError, "num_channels"),
    "group-not-dividing": (ns.GroupNorm, (3, 4), {}, ConfigError, "divisible"),
    "group-and-sizes": (ns.GroupNorm, (2, 4), {"g": 2}, ConfigError, "g="),
    "group-scope-and-channels": (ns.GroupNorm, ("n (g [c])", 4), {"g": 2, "c": 2}, ConfigError, "num_channels"),
    "group-scope-of-one-axis": (ns.GroupNorm, ("[c]",), {"c": 2}, ConfigError, "not in brackets"),
    "batch-fraction": (ns.BatchNorm, (2.5,), {}, ConfigError, "num_features"),
    "batch-zero": (ns.BatchNorm1d, (0,), {}, ConfigError, "num_features"),
    "batch-true": (ns.BatchNorm2d, (True,), {}, ConfigError, "num_features"),
    "batch-none": (ns.BatchNorm3d, (None,), {}, ConfigError, "num_features"),
    "batch-tuple": (ns.BatchNorm, ((3,),), {}, ConfigError, "num_features"),
    "batch-number-as-text": (ns.BatchNorm, ("3",), {}, ScopeError, "'3'"),
    "batch-and-sizes": (ns.BatchNorm2d, (3,), {"c": 4}, ConfigError, "c="),
    "batch-misspelt": (ns.BatchNorm2d, (3,), {"momentun": 0.1}, ConfigError, "momentun"),
    "batch-momentum": (ns.BatchNorm2d, (3,), {"momentum": 2}, ConfigError, "momentum"),
    "batch-negative-momentum": (ns.BatchNorm2d, (3,), {"momentum": -0.1}, ConfigError, "momentum"),
    "batch-momentum-text": (ns.BatchNorm2d, (3,), {"momentum": "0.1"}, ConfigError, "momentum"),
    "batch-negative-eps": (ns.BatchNorm2d, (3, -1.0), {}, ConfigError, "eps"),
    "batch-integer-dtype": (ns.BatchNorm2d, (3,), {"dtype": torch.int32}, DtypeError, "float"),
    "batch-dtype-text": (ns.BatchNorm2d, (3,), {"dtype": "float32"}, DtypeError, "float"),
    "instance-fraction": (ns.InstanceNorm2d, (2.5,), {}, ConfigError, "num_features"),
    "instance-momentum": (ns.InstanceNorm2d, (3,), {"momentum": 2}, ConfigError, "momentum"),
    "power-fraction": (ns.PowerNorm, (2.5,), {}, ConfigError, "num_features"),
    "power-and-sizes": (ns.PowerNorm, (4,), {"d": 4}, ConfigError, "d="),
    "power-no-momentum": (ns.PowerNorm, (4,), {"momentum": None}, ConfigError, "momentum"),
    "power-warmup": (ns.PowerNorm, (4,), {"warmup": -1}, ConfigError, "warmup"),
    "power-warmup-fraction": (ns.PowerNorm, (4,), {"warmup": 1.5}, ConfigError, "warmup"),
    "power-warmup-text": (ns.PowerNorm, (4,), {"warmup": "2"}, ConfigError, "warmup"),
    "power-every-token": (ns.PowerNorm, ("... [d]",), {"d": 4}, NormscopeError, "\\.\\.\\."),
    "norm-statistic": (ns.Norm, ("... [d]",), {"statistic": "mean"}, ConfigError, "rms"),
    "norm-statistic-list": (ns.Norm, ("... [d]",), {"statistic": ["rms"]}, ConfigError, "rms"),
    "norm-state": (ns.Norm, ("... [d]",), {"state": "walking"}, ConfigError, "running"),
    "norm-power-without-rms": (ns.Norm, ("[b] d",), {"state": "power", "d": 3}, ConfigError, "rms"),
    "norm-warmup-without-power": (ns.Norm, ("... [d]",), {"warmup": 3}, ConfigError, "warmup"),
    "norm-scope-number": (ns.Norm, (4,), {}, ArgumentTypeError, "scope"),
    "norm-affine-true": (ns.Norm, ("... [d]",), {"affine": True, "d": 4}, ArgumentTypeError, "scope"),
    "norm-affine-elsewhere": (ns.Norm, ("... [d]",), {"affine": "c", "d": 4}, ScopeError, "'c'"),
    "norm-size-zero": (ns.Norm, ("... [d]",), {"d": 0}, ScopeError, "positive integer"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_bad_settings(name: str) -> None:
    layer, args, kwargs, error, word = SETTINGS[name]
    with pytest.raises(error, match=word):
        layer(*args, **kwargs)


LAYERS: dict[str, tuple[ns.Norm, tuple[int, ...]]] = {
    "layer": (ns.LayerNorm(4), (2, 3, 4)),
    "layer-two-axes": (ns.LayerNorm([3, 4]), (2, 3, 4)),
    "rms": (ns.RMSNorm(4), (2, 3, 4)),
    "group": (ns.GroupNorm(2, 4), (2, 4, 3)),
    "batch": (ns.BatchNorm(4), (2, 4, 3)),
    "batch1d": (ns.BatchNorm1d(4), (2, 4, 3)),
    "batch2d": (ns.BatchNorm2d(4), (2, 4, 3, 3)),
    "batch3d": (ns.BatchNorm3d(4), (2, 4, 3, 3, 3)),
    "instance": (ns.InstanceNorm(4), (2, 4, 3)),
    "instance1d": (ns.InstanceNorm1d(4), (2, 4, 3)),
    "instance2d": (ns.InstanceNorm2d(4), (2, 4, 3, 3)),
    "instance3d": (ns.InstanceNorm3d(4, affine=True), (2, 4, 3, 3, 3)),
    "power": (ns.PowerNorm(4), (2, 3, 4)),
}

every_layer = pytest.mark.parametrize("name", LAYERS)


@every_layer
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_bad_inputs(name: str, training: bool) -> None:
    norm, shape = LAYERS[name]
    norm.train(training)
    assert norm(torch.randn(shape, generator=torch.Generator().manual_seed(0))).shape == shape  # the good neighbour
    for dtype in (torch.int64, torch.int8, torch.bool, torch.complex64):
        with pytest.raises(DtypeError, match=str(dtype)):
            norm(torch.zeros(shape, dtype=dtype))
    for value in ([1.0, 2.0], 3.0, None, "text", np.zeros(shape, dtype=np.float32)):
        with pytest.raises(DtypeError, match="takes a tensor"):
            norm(value)
    wrong_sizes = tuple(size + 1 for size in shape)
    for bad in ((), (5,), wrong_sizes, (2,) * (len(shape) + 3)):
        with pytest.raises((ShapeError, ScopeError)):
            norm(torch.zeros(bad))


RANKS = {
    "batch1d": ((4,), (2, 4, 3, 3)),
    "batch2d": ((2, 4), (2, 4, 3), (2, 4, 3, 3, 3)),
    "batch3d": ((2, 4, 3, 3), (2, 4, 3, 3, 3, 3)),
    "instance1d": ((4,), (2, 4, 3, 3)),
    "instance2d": ((4, 3), (2, 4, 3, 3, 3)),
    "instance3d": ((4, 3, 3), (2, 4, 3, 3, 3, 3)),
}


@pytest.mark.parametrize("name", RANKS)
def test_wrong_rank_names_the_ranks_that_fit(name: str) -> None:
    norm, _ = LAYERS[name]
    for shape in RANKS[name]:
        with pytest.raises(ShapeError, match=f"dimensions, but got {len(shape)}"):
            norm(torch.zeros(shape))


def test_positions_are_needed_where_they_share_statistics() -> None:
    with pytest.raises(ScopeError, match="matches no axis"):
        ns.InstanceNorm(4)(torch.zeros(2, 4))


X = torch.zeros(2, 3, 4)

FUNCTIONS: dict[str, Mistake] = {
    "integers": (ns.layer_norm, (torch.zeros(3, dtype=torch.int64),), {}, DtypeError, "int64"),
    "list": (ns.rms_norm, ([1.0],), {}, DtypeError, "tensor"),
    "scalar": (ns.layer_norm, (torch.zeros(()),), {}, ScopeError, "dimension"),
    "negative-eps": (ns.layer_norm, (X,), {"eps": -1.0}, ConfigError, "eps"),
    "eps-text": (ns.rms_norm, (X,), {"eps": "small"}, ConfigError, "eps"),
    "weight-shape": (ns.layer_norm, (X, torch.ones(3)), {}, ShapeError, "weight"),
    "bias-shape": (ns.layer_norm, (X, None, torch.ones(4, 1)), {}, ShapeError, "bias"),
    "weight-list": (ns.rms_norm, (X, [1.0] * 4), {}, DtypeError, "weight"),
    "statistic": (ns.normalize, (X, "... [d]"), {"statistic": "max"}, ConfigError, "statistic"),
    "scope": (ns.normalize, (X, "b s d"), {}, ScopeError, "brackets"),
    "scope-number": (ns.normalize, (X, 1), {}, ArgumentTypeError, "scope"),
    "rank": (ns.normalize, (X, "b [d]"), {}, ScopeError, "2 dimensions"),
    "sizes": (ns.normalize, (X, "b s [d]"), {"d": 5}, ScopeError, "d=5"),
    "split": (ns.normalize, (X, "b s (g [d])"), {"g": 3}, ScopeError, "divided"),
    "weight-without-axes": (ns.normalize, (X, "b s [d]"), {"weight": torch.ones(4)}, ConfigError, "affine"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, args, kwargs, error, word = FUNCTIONS[name]
    with pytest.raises(error, match=word):
        function(*args, **kwargs)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    four = np.int64(4)
    assert ns.LayerNorm(four).normalized_shape == (4,)  # type: ignore[arg-type]
    assert ns.BatchNorm(four).num_features == 4  # type: ignore[arg-type]
    assert ns.GroupNorm(np.int64(2), four).num_groups == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["eps", "bias", "mask", "input", "state"])
def test_an_axis_called_like_an_argument_is_refused(name: str) -> None:
    for make in (ns.Norm, ns.LayerNorm, lambda scope: ns.normalize(torch.zeros(2, 3), scope)):
        with pytest.raises(NormscopeError, match=f"'{name}' is an argument of a norm"):
            make(f"n [{name}]")


def test_a_bias_that_rms_norm_does_not_have() -> None:
    with pytest.raises(NormscopeError, match="'bias', which the scope does not have"):
        ns.RMSNorm("... [d]", d=4, bias=True)


def test_an_axis_may_be_called_like_a_variable() -> None:
    assert ns.normalize(torch.zeros(2, 4), "n [x]", x=4).shape == (2, 4)
    assert ns.Norm("[scope] d", scope=3).sizes == {"scope": 3}


def test_synchronised_statistics_need_one_shape() -> None:
    with pytest.raises(ConfigError, match="the size of 's' may differ between them"):
        ns.Norm("[b] s d", sync=True, d=4)
    assert ns.Norm("[b] s d", sync=True, s=3, d=4).sync


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (ns.LayerNorm(16), (2, 16)),
        (ns.RMSNorm(16), (2, 16)),
        (ns.LayerNorm(16, elementwise_affine=False), (2, 16)),
        (ns.BatchNorm2d(16), (2, 16, 3, 3)),
        (ns.BatchNorm2d(16).eval(), (2, 16, 3, 3)),
        (ns.GroupNorm(2, 16), (2, 16, 3, 3)),
        (ns.PowerNorm(16), (2, 16)),
    ],
    ids=str,
)
def test_a_weight_of_another_size_is_refused(norm: ns.Norm, shape: tuple[int, ...]) -> None:
    """A kernel would read past its end."""
    for size in (1, 4, 17):
        other = {"weight": torch.ones(size), **({} if norm.bias is None else {"bias": torch.zeros(size)})}
        for name, tensor in other.items():
            with pytest.raises(ShapeError, match=rf"made for a weight and a bias of shape .*\({size},\)"):
                torch.func.functional_call(norm, {name: tensor}, torch.randn(shape))
