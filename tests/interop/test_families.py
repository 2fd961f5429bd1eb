"""Each family is a table in a file of its own, and names only what exists."""

import dataclasses
import inspect
from pathlib import Path

import pytest

from normscope.interop import families as package
from normscope.interop.families import families
from normscope.models.gpt import GPT, GPTConfig


def test_every_file_is_a_family() -> None:
    files = Path(str(package.__file__)).parent.glob("*.py")
    assert [*families()] == sorted({path.stem for path in files} - {"__init__"})


@pytest.mark.parametrize("name", families())
def test_a_family_reads_fields_that_exist_and_names_every_weight(name: str) -> None:
    family = families()[name]
    fields = {field.name for field in dataclasses.fields(GPTConfig)}
    assert family.config.keys() <= fields
    assert inspect.signature(family.preset).parameters
    config = family.preset(vocab_size=7, context=4, width=8, heads=2, kv_heads=2, depth=2, tied_head=False)
    ours = {name for name, _ in family._tensors(config)}
    ours |= {f"{name}.{part}" for name, _, part in family._linears(config)}
    assert ours == GPT(config).state_dict().keys()
