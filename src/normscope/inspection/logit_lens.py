"""Logit lens: the prediction of a GPT after each block."""

from functools import partial

import torch
from torch import Tensor

from normscope.generate.model_runner import eval_inference_mode
from normscope.generate.tokens import check_model
from normscope.models.gpt import GPT


def logit_lens(
    model: GPT, tokens: Tensor, *, mask: Tensor | None = None, last_only: bool = False, capped: bool = True
) -> Tensor:
    """Apply the final norm and the head to the residual stream after the embedding and after every block.

    The result has shape (depth + 1, b, s, vocab_size): `lens[0]` are the logits of the embedding alone, `lens[i]`
    those after i blocks, and `lens[-1]` those of the model. The model runs in eval mode, without gradients, and is left
    as it was.

    Args:
        model: A GPT.
        tokens: Token ids, (b, s).
        mask: (b, s), True at real tokens.
        last_only: Only the last position, (depth + 1, b, 1, vocab_size), which takes far less memory.
        capped: Apply the config's logit cap.

    >>> from normscope.models.presets import llama
    >>> model = GPT(llama(vocab_size=65, context=32, depth=2, width=64, heads=4)).eval()
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> lens = logit_lens(model, tokens)
    >>> lens.shape, torch.equal(lens[-1], model(tokens))
    (torch.Size([3, 1, 3, 65]), True)

    Paper:
        nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    check_model(model)
    with eval_inference_mode(list(model.modules())):
        to_logits = partial(model.to_logits, mask=mask, last_only=last_only, capped=capped)
        return torch.stack([to_logits(stream) for stream in model.residual_streams(tokens, mask=mask)])
