"""A generation restores the mode of the model, gradients and the rng, also after an error."""

import pytest
import torch
from torch import Tensor, nn

from normscope.generate.tokens import Generation, generate_tokens
from normscope.models.gpt import GPT
from tests.generate.writers import writer


def mixed(form: str = "llama") -> GPT:
    """A model in training, of which a part was put into eval mode by its owner."""
    model = writer(form, torch.float32, dropout=0.5).train()
    model.blocks[0].eval()
    return model


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_mode_gradients_and_rng_are_restored() -> None:
    model = mixed()
    before, state, weights = modes(model), torch.get_rng_state(), [p.clone() for p in model.parameters()]
    text = generate_tokens(model, [[1, 2]], max_new_tokens=25)
    assert modes(model) == before
    assert len(set(before)) == 2
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))
    # No dropout fell: the same model in eval mode writes the same.
    assert text == generate_tokens(model.eval(), [[1, 2]], max_new_tokens=25)


def test_the_model_is_in_its_original_mode_between_tokens() -> None:
    model = mixed()
    before, tokens = modes(model), torch.tensor([[1, 2, 3]])
    for _ in Generation(model, [[1, 2]], max_new_tokens=3):
        assert modes(model) == before
        assert torch.is_grad_enabled()
        model.loss(tokens, tokens).backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("grad", [True, False])
def test_the_mode_is_restored_after_an_error(grad: bool) -> None:
    model = mixed()
    before, seen = modes(model), []

    def break_down(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert not any(modes(model))
        assert not torch.is_grad_enabled()
        seen.append(inputs)
        if len(seen) == 3:
            raise RuntimeError("the lamp went out")

    model.blocks[1].register_forward_pre_hook(break_down)
    with torch.set_grad_enabled(grad):
        with pytest.raises(RuntimeError, match="the lamp went out"):
            generate_tokens(model, [[1]], max_new_tokens=5)
        assert torch.is_grad_enabled() == grad
    assert modes(model) == before


def test_running_statistics_do_not_change() -> None:
    model = writer("llama", torch.float32, norm="batch", allow_future_leak=True).train()
    model(torch.tensor([[1, 2, 3, 4]]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generate_tokens(model, [[1, 2]], max_new_tokens=5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_each_token_is_computed_once_unless_the_window_restarts() -> None:
    model, seen = writer("gpt2"), []
    model.blocks[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[1]))
    generate_tokens(
        model, [[1] * 10], max_new_tokens=17
    )  # a context of 16: it is full after 6 tokens, and again after 8
    assert seen == [10] + [1] * 6 + [8] + [1] * 8 + [8]


def test_a_model_that_cannot_be_cached_recomputes_the_window() -> None:
    model, seen = writer("no-cache"), []
    model.blocks[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[1]))
    generate_tokens(model, [[1] * 13], max_new_tokens=6)
    assert seen == [13, 14, 15, 16, 8, 9]


@pytest.mark.slow
def test_a_compiled_model_generates_the_same() -> None:
    torch.compiler.reset()
    model = writer("llama", depth=1).eval()
    compiled = torch.compile(model, backend="eager")
    found = generate_tokens(compiled, [[1, 2, 3]], max_new_tokens=2)  # type: ignore[arg-type]
    assert found == generate_tokens(model, [[1, 2, 3]], max_new_tokens=2)
