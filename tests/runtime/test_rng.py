"""RNG state is saved and restored, on the CPU and on an accelerator."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from normscope.runtime.rng import rng_state, set_rng_state


def test_the_same_numbers_are_drawn_again() -> None:
    state = rng_state(torch.device("cpu"))
    assert list(state) == ["torch"]
    first = torch.rand(5)
    set_rng_state(state, torch.device("cpu"))
    assert torch.equal(torch.rand(5), first)


@pytest.mark.parametrize(("name", "asked"), [("cuda:1", ("cuda:1",)), ("mps", ())])
def test_the_state_of_an_accelerator_is_kept_too(
    name: str, asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No accelerator is here, so its part is played by a generator of the CPU."""
    device, generator = torch.device(name), torch.Generator().manual_seed(3)

    def get(*which: torch.device) -> Tensor:
        assert tuple(map(str, which)) == asked
        return generator.get_state()

    def put(state: Tensor, *which: torch.device) -> None:
        assert tuple(map(str, which)) == asked
        generator.set_state(state)

    stand_in = SimpleNamespace(get_rng_state=get, set_rng_state=put)
    monkeypatch.setattr(torch, "get_device_module", lambda wanted: stand_in if wanted == device else None)
    state = rng_state(device)
    assert list(state) == ["torch", device.type]
    first = torch.rand(5, generator=generator), torch.rand(5)
    set_rng_state(state, device)
    assert torch.equal(torch.rand(5, generator=generator), first[0])
    assert torch.equal(torch.rand(5), first[1])
    set_rng_state({"torch": state["torch"]}, device)  # of a checkpoint that another kind of device wrote
    assert torch.equal(torch.rand(5), first[1])
