"""Networks on texts: transformers by hand and torch's own, recurrent ones, state spaces."""

from typing import Any

import torch
from torch import Tensor, nn

import normscope
from tests.diagnostics.cases import Scene, running, steps, well
from tests.diagnostics.networks import Decoder, Encoder, LongShort, Recurrent, StateSpaceModel
from tests.diagnostics.tasks import LENGTH, TOKENS, classify, count_up, predict, texts


@well((0, 1, 2))
def decoder_at_the_start(seed: int) -> Scene:
    model: Any = Decoder(width=(16, 32, 64)[seed], depth=4)
    return running(model, predict(model))


@well((0, 1))
def decoder_trained(seed: int) -> Scene:
    model: Any = Decoder(depth=3)
    return running(model, predict(model), trained=100, lr=3e-3)


@well((0, 1))
def deep_decoder(seed: int) -> Scene:
    model: Any = Decoder(width=32, depth=12)
    return running(model, predict(model), lr=3e-4)


@well((0, 1))
def shallow_post_norm_without_warmup(seed: int) -> Scene:
    model: Any = Decoder(depth=2, post=True)
    return running(model, predict(model), trained=60 * seed)


@well((0, 1))
def deep_post_norm_with_warmup(seed: int) -> Scene:
    model: Any = Decoder(depth=8, post=True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / 1000))
    batch = predict(model)

    def run() -> None:
        for i in range(3):
            steps([batch(i)], optimiser)
            schedule.step()

    return model, run


@well((0, 1))
def deep_post_norm_fine_tuned(seed: int) -> Scene:
    model: Any = Decoder(depth=8, post=True)
    return running(model, predict(model), lr=2e-5)


@well((0, 1))
def decoder_with_a_schedule_that_starts_at_zero(seed: int) -> Scene:
    model: Any = Decoder(depth=2)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: step / 100)
    return model, lambda: steps([predict(model)(seed)], optimiser)


@well((0, 1))
def queries_that_start_at_zero(seed: int) -> Scene:
    """As muP has them: attention is uniform at first, and learns."""
    model: Any = Decoder(depth=3)
    for block in model.blocks:
        nn.init.zeros_(block.attention.query.weight)
    return model, lambda: predict(model)(seed)().backward()


@well((0, 1))
def tied_head(seed: int) -> Scene:
    model: Any = Decoder(width=32)
    nn.init.normal_(model.tokens.weight, std=32**-0.5)
    model.head.weight = model.tokens.weight
    return running(model, predict(model), trained=60 * seed)


@well((0, 1))
def large_vocabulary(seed: int) -> Scene:
    """Most rows of its embedding get no gradient from a batch."""
    model: Any = Decoder(vocabulary=4000, width=16, depth=2)
    nn.init.normal_(model.tokens.weight, std=0.02)
    return running(model, predict(model, lambda i: texts(i, vocabulary=4000)), trained=10 * seed)


@well((0, 1))
def encoder_of_torch_drawn_anew(seed: int) -> Scene:
    model: Any = Encoder(first=bool(seed))
    return running(model, count_up(model), trained=40 * seed)


@well((0, 1))
def encoder_of_torch_in_eval(seed: int) -> Scene:
    model: Any = Encoder().eval()

    def run() -> None:
        with torch.no_grad():
            model(texts(seed)[0])

    return model, run


@well((0, 1))
def lstm(seed: int) -> Scene:
    model: Any = LongShort(layers=1 + seed)
    return running(model, predict(model), trained=50 * seed, lr=3e-3)


@well((0, 1))
def recurrent_cell(seed: int) -> Scene:
    model: Any = Recurrent()
    return running(model, predict(model), trained=50 * seed)


@well((0, 1))
def state_spaces(seed: int) -> Scene:
    model: Any = StateSpaceModel(depth=3)
    return running(model, predict(model), trained=20 * seed, lr=3e-3)


@well((0, 1))
def decoder_in_bfloat16(seed: int) -> Scene:
    model: Any = Decoder(depth=2).bfloat16()

    def run() -> None:
        with torch.backends.mkldnn.flags(enabled=False), torch.no_grad():
            model(texts(seed)[0])

    return model, run


@well((0, 1))
def state_spaces_with_sgd(seed: int) -> Scene:
    """Gradients of its parts differ by a thousand."""
    model: Any = StateSpaceModel(depth=2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, lambda: steps([predict(model)(seed)], optimiser)


class MaskedSentences(nn.Module):
    """Padded texts, normalised over the batch without their padding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(TOKENS, 32, padding_idx=0), normscope.BatchNorm("[b s] d", d=32)
        self.head = nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.tokens(tokens), tokens > 0).mean(1))
        return y


@well((0, 1))
def batch_norm_that_is_given_its_mask(seed: int) -> Scene:
    model = MaskedSentences()

    def data(number: int) -> tuple[Tensor, Tensor]:
        tokens, _ = texts(seed + number, count=32)
        lengths = 3 + torch.arange(32) % 13
        return torch.where(torch.arange(LENGTH)[None] < lengths[:, None], tokens, 0), tokens[:, 0] % 4

    return running(model, classify(model, data), trained=30 * seed)
