"""A norm as a value: what it says is what is built, and what cannot be built is refused when it is made."""

from typing import Any

import pytest

import normscope as ns
from normscope.blocks.norm.norm_spec import IMAGE_NORMS, TEXT_NORMS, NoNorm, as_norm, build_norm
from normscope.errors import ConfigError, NormscopeError
from tests.blocks.norm.cases import mostly_on

pytestmark = mostly_on("fused")

UNUSUAL: dict[str, Any] = {
    "statistic": "rms",
    "state": "power",
    "affine": "d",
    "bias": False,
    "eps": 1e-3,
    "momentum": 0.7,
    "warmup": 3,
    "sync": True,
}


def test_every_setting_reaches_the_layer() -> None:
    norm = ns.NormSpec("[b s] d", **UNUSUAL).build((None, None, 6))
    assert norm.statistic.name == UNUSUAL["statistic"]
    for name in ("state", "eps", "momentum", "warmup", "sync"):
        assert getattr(norm, name) == UNUSUAL[name], name
    assert norm.weight is not None
    assert norm.weight.shape == (6,)
    assert norm.bias is None


def test_only_what_owns_something_is_pinned() -> None:
    assert IMAGE_NORMS["layer"].build((None, 8, 5, 5)).sizes == {"c": 8}
    assert TEXT_NORMS["group"].build((None, None, 8)).sizes == {"g": 4, "d": 2}
    assert TEXT_NORMS["rms-plain"].build((None, None, 8)).sizes == {}


def test_a_spec_cannot_be_changed_from_outside() -> None:
    sizes = {"g": 4}
    spec = ns.NormSpec("b s (g [d])", affine="(g d)", sizes=sizes)
    sizes["g"] = 2
    assert dict(spec.sizes) == {"g": 4}
    assert hash(spec) == hash(ns.NormSpec("b s (g [d])", affine="(g d)", sizes=(("g", 4),)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"statistic": "median"}, "statistic='median'"),
        ({"state": "always"}, "state='always'"),
        ({"eps": -1}, "eps=-1"),
        ({"momentum": 7}, "momentum=7"),
        ({"warmup": -1}, "warmup=-1"),
        ({"warmup": 3}, "goes with state='power'"),
        ({"affine": "q"}, "axis 'q' is not in the scope"),
        ({"sizes": {"q": 3}}, "axis 'q', which the scope does not have"),
        ({"sizes": [3]}, "must be a mapping"),
        ({"sizes": None}, "must be a mapping"),
        ({"scope": "b s d"}, "the scope is empty"),
        ({"bias": "no"}, "bias='no' must be True or False"),
    ],
)
def test_what_cannot_be_built_is_refused_when_it_is_made(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(NormscopeError, match=words):
        ns.NormSpec(**settings)


def test_a_norm_by_name_by_scope_or_as_it_is() -> None:
    spec = ns.NormSpec("b [s d]", affine=None)
    assert as_norm(spec) is spec
    assert as_norm("layer") is TEXT_NORMS["layer"]
    assert as_norm("layer", IMAGE_NORMS) is IMAGE_NORMS["layer"]
    assert as_norm("b [s d]") == spec
    assert as_norm("none") is None
    assert as_norm(None) is None
    assert isinstance(build_norm(None, (None, None, 4)), NoNorm)


@pytest.mark.parametrize("value", ["lauer", 3, ["layer"]])
def test_no_such_norm(value: Any) -> None:
    with pytest.raises(ConfigError, match="give one of layer, rms"):
        as_norm(value)


def test_what_a_norm_looks_at_in_training() -> None:
    assert TEXT_NORMS["batch"].mixes_along(1, rank=3)
    assert TEXT_NORMS["instance"].mixes_along(1, rank=3)
    assert not TEXT_NORMS["layer"].mixes_along(1, rank=3)
    assert TEXT_NORMS["power"].brackets(1, rank=3)
    assert not TEXT_NORMS["power"].mixes_along(1, rank=3)
    assert ns.NormSpec("[b s] d", statistic="rms", state="power", warmup=5).mixes_along(1, rank=3)
