"""A right-padded batch gives the logits of each sequence alone; statistics ignore padding."""

import pytest
import torch
from torch import Tensor

from normscope.blocks.norm.norm_spec import TEXT_NORMS, NormSpec
from normscope.models.gpt import GPT
from tests.models.tiny import CONTEXT, VOCABULARY, every_form, made, tiny
from tests.support import close_all, gradients, random_tokens, real_tokens, scramble

LENGTHS = [7, 4, 1]
SHARED = {
    **{name: TEXT_NORMS[name] for name in ("instance", "batch", "power")},
    "all": NormSpec("[b s d]", affine=None),
}


def padded(size: int, filler: int) -> tuple[Tensor, Tensor]:
    """The same three sentences, padded to this size with this token."""
    mask = real_tokens(LENGTHS, size)
    tokens = torch.full((3, size), filler)
    tokens[:, :7] = random_tokens(VOCABULARY, 3, 7)
    return tokens.where(mask, filler), mask


@every_form
def test_padded_sequences_match_the_sequences_alone(form: str) -> None:
    model = made(form)
    tokens, mask = padded(CONTEXT, filler=9)
    logits = model(tokens, mask=mask)
    assert logits.isfinite().all()
    for row, length in enumerate(LENGTHS):
        alone = model(tokens[row : row + 1, :length])
        torch.testing.assert_close(logits[row : row + 1, :length], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", SHARED)
@pytest.mark.parametrize("training", [True, False])
def test_padding_does_not_change_the_logits(norm: str, training: bool) -> None:
    """For norms that share statistics between tokens: logits, gradients and running statistics are the same."""
    found = []
    for size, filler in ((7, 0), (7, 9), (CONTEXT, 3)):
        model = GPT(tiny("llama", norm=SHARED[norm], allow_future_leak=True)).double().train(training)
        scramble(model)
        tokens, mask = padded(size, filler)
        logits = model(tokens, mask=mask)
        model.loss(tokens, tokens.where(mask, -1), mask=mask).backward()
        buffers = {name: value for name, value in model.named_buffers() if "norm" in name}
        found.append({"logits": logits[mask].detach(), **buffers, **gradients(model)})
    for other in found[1:]:
        # The filler's row of the table gets no gradient, and that is the only trace it could leave.
        close_all(found[0], other, 1e-9)


@pytest.mark.parametrize("norm", SHARED)
def test_a_truncated_sequence_needs_no_mask(norm: str) -> None:
    config = tiny("llama", norm=SHARED[norm], allow_future_leak=True)
    tokens, mask = padded(CONTEXT, filler=9)
    logits = []
    for given, real in ((tokens[:1], mask[:1]), (tokens[:1, :7], None)):
        model = GPT(config)
        scramble(model)
        logits.append(model(given, mask=real)[:, :7])
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-5)


def test_without_a_mask_padding_changes_the_logits() -> None:
    """Else the tests above would prove nothing."""
    model = GPT(tiny("llama", norm="instance", allow_future_leak=True))
    scramble(model)
    logits = [model(padded(7, filler)[0])[1, :4] for filler in (0, 9)]
    assert not torch.isclose(*logits).all()


@every_form
def test_the_loss_ignores_padding(form: str) -> None:
    """Whatever stands there as a target: the loss is the mean over the sentences' own tokens."""
    model = made(form, torch.float64)
    tokens, mask = padded(CONTEXT, filler=9)
    targets = random_tokens(VOCABULARY, 3, CONTEXT, seed=1)
    alone = [model.loss(tokens[i : i + 1, :n], targets[i : i + 1, :n]) * n for i, n in enumerate(LENGTHS)]
    for filler in (3, -1, -100):
        loss = model.loss(tokens, targets.where(mask, filler), mask=mask)
        torch.testing.assert_close(loss, torch.stack(alone).sum() / sum(LENGTHS), rtol=1e-9, atol=1e-9)
