"""Sequence models: hand-written transformers, nn.TransformerEncoder, RNNs, state space models."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normscope
from tests.diagnostics.cases import Setup, healthy, run_steps, train, two_training_steps
from tests.diagnostics.networks import RNN, Decoder, Encoder, LSTMModel, StateSpaceModel
from tests.diagnostics.tasks import CONTEXT, VOCAB_SIZE, classify, classify_stride, predict_next, texts


@healthy((0, 1, 2), quick=False)
def decoder_at_init(seed: int) -> Setup:
    model: Any = Decoder(width=(16, 32, 64)[seed], depth=4)
    return two_training_steps(model, predict_next(model))


@healthy((0, 1), quick=False)
def decoder_trained(seed: int) -> Setup:
    model: Any = Decoder(depth=3)
    return two_training_steps(model, predict_next(model), after=100, lr=3e-3)


@healthy((0, 1), quick=False)
def deep_decoder(seed: int) -> Setup:
    model: Any = Decoder(width=32, depth=12)
    return two_training_steps(model, predict_next(model), lr=3e-4)


@healthy((0, 1))
def shallow_post_norm_without_warmup(seed: int) -> Setup:
    model: Any = Decoder(depth=2, post=True)
    return two_training_steps(model, predict_next(model), after=60 * seed)


@healthy((0, 1))
def deep_post_norm_with_warmup(seed: int) -> Setup:
    model: Any = Decoder(depth=8, post=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 1000))
    batch = predict_next(model)

    def run() -> None:
        for i in range(3):
            run_steps([batch(i)], optimizer)
            schedule.step()

    return model, run


@healthy((0, 1), quick=False)
def deep_post_norm_fine_tuned(seed: int) -> Setup:
    model: Any = Decoder(depth=8, post=True)
    return two_training_steps(model, predict_next(model), lr=2e-5)


@healthy((0, 1))
def decoder_with_lr_schedule_from_zero(seed: int) -> Setup:
    model: Any = Decoder(depth=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 100)
    return model, lambda: run_steps([predict_next(model)(seed)], optimizer)


@healthy((0, 1))
def zero_init_queries(seed: int) -> Setup:
    """As in muP: attention is uniform at initialization, but learns."""
    model: Any = Decoder(depth=3)
    for block in model.blocks:
        nn.init.zeros_(block.attention.query.weight)
    return model, lambda: predict_next(model)(seed)().backward()


@healthy((0, 1))
def tied_head(seed: int) -> Setup:
    model: Any = Decoder(width=32)
    nn.init.normal_(model.tokens.weight, std=32**-0.5)
    model.head.weight = model.tokens.weight
    return two_training_steps(model, predict_next(model), after=60 * seed)


@healthy((0, 1))
def large_vocabulary(seed: int) -> Setup:
    """Most embedding rows get no gradient from one batch."""
    model: Any = Decoder(vocab_size=4000, width=16, depth=2)
    nn.init.normal_(model.tokens.weight, std=0.02)
    return two_training_steps(model, predict_next(model, lambda i: texts(i, vocab_size=4000)), after=10 * seed)


@healthy((0, 1))
def torch_encoder_reinitialized(seed: int) -> Setup:
    model: Any = Encoder(norm_first=bool(seed))
    return two_training_steps(model, classify_stride(model), after=40 * seed)


@healthy((0, 1))
def torch_encoder_eval(seed: int) -> Setup:
    model: Any = Encoder().eval()

    def run() -> None:
        with torch.no_grad():
            model(texts(seed)[0])

    return model, run


@healthy((0, 1))
def lstm(seed: int) -> Setup:
    model: Any = LSTMModel(layers=1 + seed)
    return two_training_steps(model, predict_next(model), after=50 * seed, lr=3e-3)


@healthy((0, 1))
def rnn_cell(seed: int) -> Setup:
    model: Any = RNN()
    return two_training_steps(model, predict_next(model), after=50 * seed)


@healthy((0, 1))
def state_space_model(seed: int) -> Setup:
    model: Any = StateSpaceModel(depth=3)
    return two_training_steps(model, predict_next(model), after=20 * seed, lr=3e-3)


@healthy((0, 1))
def decoder_in_bfloat16(seed: int) -> Setup:
    model: Any = Decoder(depth=2).bfloat16()

    def run() -> None:
        with torch.backends.mkldnn.flags(enabled=False), torch.no_grad():
            model(texts(seed)[0])

    return model, run


@healthy((0, 1))
def state_space_model_with_sgd(seed: int) -> Setup:
    """Gradient norms of its layers differ by a factor of a thousand."""
    model: Any = StateSpaceModel(depth=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, lambda: run_steps([predict_next(model)(seed)], optimizer)


class MaskedClassifier(nn.Module):
    """Padded sequences, normalized over the batch without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(VOCAB_SIZE, 32, padding_idx=0), normscope.BatchNorm("[b s] d", d=32)
        self.head = nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.tokens(tokens), tokens > 0).mean(1))
        return y


@healthy((0, 1))
def batchnorm_with_mask(seed: int) -> Setup:
    model = MaskedClassifier()

    def data(number: int) -> tuple[Tensor, Tensor]:
        tokens, _ = texts(seed + number, count=32)
        lengths = 3 + torch.arange(32) % 13
        return torch.where(torch.arange(CONTEXT)[None] < lengths[:, None], tokens, 0), tokens[:, 0] % 4

    return two_training_steps(model, classify(model, data), after=30 * seed)


@healthy()
def predicts_the_next_two_tokens(seed: int) -> Setup:
    model: Any = nn.ModuleDict({"body": Decoder(depth=1), "second": nn.Linear(VOCAB_SIZE, VOCAB_SIZE)})

    def loss(i: int) -> Tensor:
        x, y = texts(seed + i)
        logits = model["body"](x)
        next_one = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        return next_one + F.cross_entropy(model["second"](logits)[:, :-1].flatten(0, 1), y[:, 1:].flatten())

    return train(model, loss)


@healthy()
def copies_its_padded_source(seed: int) -> Setup:
    """A decoder gets the tokens before each target, and an encoder the targets themselves; padding is ignored."""

    class Copier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCAB_SIZE + 2, 16)
            self.encoder, self.decoder = nn.GRU(16, 32, batch_first=True), nn.GRU(16, 32, batch_first=True)
            self.head = nn.Linear(32, VOCAB_SIZE + 2)

        def forward(self, source: Tensor, before: Tensor) -> Tensor:
            _, state = self.encoder(self.embedding(source))
            logits: Tensor = self.head(self.decoder(self.embedding(before), state)[0])
            return logits

    model: Any = Copier()

    def loss(i: int) -> Tensor:
        x, _ = texts(seed + i)
        lengths = torch.randint(3, 12, (len(x), 1), generator=torch.Generator().manual_seed(i))
        is_padding = torch.arange(x.shape[1]) >= lengths
        source = (x + 2).masked_fill(is_padding, 0)
        before = F.pad(source[:, :-1], (1, 0), value=1)
        return F.cross_entropy(model(source, before).flatten(0, 1), source.masked_fill(is_padding, -100).flatten())

    return train(model, loss)
