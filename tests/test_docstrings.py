"""Every public layer says its formula, its scope, its shapes, an example that runs, and where it comes from."""

import importlib
import inspect
import pkgutil
import re

import pytest
from torch import nn

import normscope.blocks
import normscope.models

SECTIONS = ("Formula", "Scope", "Shapes", "Example", "Papers?")


def public_layers() -> list[type[nn.Module]]:
    """The nn.Modules that are defined anywhere in blocks and models, but for those whose name begins with _."""
    found = [
        member
        for package in (normscope.blocks, normscope.models)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        for name, member in inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
        if issubclass(member, nn.Module) and member.__module__ == module.name and not name.startswith("_")
        if member.forward is not nn.Module.forward  # a base class without a forward pass is no layer
    ]
    return sorted(found, key=lambda layer: layer.__name__)


def has_a_page_elsewhere(layer: type[nn.Module]) -> bool:
    """Whether a layer adds no mathematics, so that the formula would be said twice.

    Two kinds: a form for one rank of another layer (BatchNorm2d of BatchNorm); and a helper, which gives a class of
    torch's nothing but a forward pass without parameters, or nothing but another start.
    """
    ours = layer.__bases__[0].__module__.startswith("normscope.")
    if ours:
        return layer.__name__[-2:] in ("1d", "2d", "3d")
    defined = {name for name, value in vars(layer).items() if inspect.isfunction(value)}
    return defined in ({"forward"}, {"reset_parameters"})


LAYERS = public_layers()


def test_the_exceptions_are_these_and_no_others() -> None:
    assert [layer.__name__ for layer in LAYERS if has_a_page_elsewhere(layer)] == [
        "BatchNorm1d",
        "BatchNorm2d",
        "BatchNorm3d",
        "Convolution",
        "InstanceNorm1d",
        "InstanceNorm2d",
        "InstanceNorm3d",
        "NoNorm",
    ]
    assert len(LAYERS) >= 24


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_a_layer_tells_what_it_is(layer: type[nn.Module]) -> None:
    text = inspect.cleandoc(vars(layer).get("__doc__") or "")
    assert text, "a docstring of its own"
    if has_a_page_elsewhere(layer):
        return
    places = []
    for section in SECTIONS:
        # A heading by itself, and under it a line at least that is further in.
        match = re.search(rf"^{section}:\n    \S", text, re.MULTILINE)
        assert match, f"{layer.__name__} has no section {section!r}"
        places.append(match.start())
    assert places == sorted(places), "the sections come in the same order everywhere"
    assert ">>> " in text[places[3] : places[4]], "the example can be run"
