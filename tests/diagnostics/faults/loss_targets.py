"""Targets that do not fit their loss."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, fault, train
from tests.diagnostics.healthy.huggingface import gpt2
from tests.diagnostics.networks import Decoder, LSTMModel, mlp
from tests.diagnostics.tasks import points, texts


def _heights(i: int) -> tuple[Tensor, Tensor]:
    x, labels = points(i)
    return x, labels + x[:, 0]


@fault("loss-broadcasts", "")
def smooth_l1_of_column_and_row() -> Setup:
    model: Any = mlp(16, 32, 1)

    def loss(i: int) -> Tensor:
        x, y = _heights(i)
        return F.smooth_l1_loss(model(x), y)

    return train(model, loss)


@fault("loss-broadcasts", "")
def hand_written_squares_of_row_and_column() -> Setup:
    model: Any = mlp(16, 32, 1)

    def loss(i: int) -> Tensor:
        x, y = _heights(i)
        error = model(x).squeeze(-1) - y[:, None]
        loss: Tensor = 0.5 * (error * error).sum() / y.numel()
        return loss

    return train(model, loss)


@fault("loss-broadcasts", "")
def hand_written_binary_cross_entropy_broadcasts() -> Setup:
    model: Any = nn.Sequential(mlp(16, 32, 1), nn.Sigmoid())

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        p, y = model(x), (labels > 1).float()
        return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()

    return train(model, loss)


@fault("loss-broadcasts", "")
def masks_of_images_broadcast() -> Setup:
    """Predictions of shape (batch, 1, height, width), targets without the axis of channels."""
    model: Any = nn.Conv2d(1, 1, 3, padding=1)

    def loss(i: int) -> Tensor:
        x = torch.randn(6, 1, 8, 8)
        return F.l1_loss(model(x), x[:, 0].sign())

    return train(nn.Sequential(model), loss)


@fault("mixes-axes", "")
def predictions_with_time_first() -> Setup:
    """The recurrent network returns (time, batch, classes), and the targets are (batch, time)."""
    model: Any = LSTMModel()
    model.lstm.batch_first = False

    def loss(i: int) -> Tensor:
        x, y = texts(i, count=12)
        return F.cross_entropy(model(x.T).view(-1, 16), y.clone().view(-1))

    return train(model, loss)


@fault("mixes-axes", "")
def targets_with_time_first() -> Setup:
    model: Any = Decoder(depth=1)

    def loss(i: int) -> Tensor:
        x, y = texts(i, count=12)
        return F.nll_loss(model(x).log_softmax(-1).flatten(0, 1), y.T.contiguous().flatten())

    return train(model, loss)


@fault("targets-out-of-range", "")
def binary_cross_entropy_with_classes_1_and_2() -> Setup:
    model: Any = mlp(16, 32, 1)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.binary_cross_entropy_with_logits(model(x).squeeze(1), 1.0 + (labels > 1))

    return train(model, loss)


@fault("targets-out-of-range", "")
def cosine_embedding_with_targets_0_and_1() -> Setup:
    model: Any = mlp(16, 32, 8)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        other = x.roll(1, 0)
        return F.cosine_embedding_loss(model(x), model(other), (labels == labels.roll(1)).long())

    return train(model, loss)


@fault("targets-out-of-range", "")
def ctc_with_blank_among_targets() -> Setup:
    model: Any = nn.Sequential(nn.Linear(6, 6), nn.LogSoftmax(dim=-1))

    def loss(i: int) -> Tensor:
        targets = torch.randint(0, 6, (8, 4))
        x = F.one_hot(targets, 6).float().repeat_interleave(4, 1).transpose(0, 1)
        return F.ctc_loss(model(x), targets, torch.full((8,), 16), torch.full((8,), 4))

    return train(model, loss)


@fault("loss-arguments-swapped", "", ["non-finite-gradient"])
def labels_before_probabilities() -> Setup:
    """The logarithm of 0 has an infinite gradient, and in the second step torch raises an error."""
    model: Any = nn.Sequential(mlp(16, 32, 1), nn.Sigmoid())

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.binary_cross_entropy((labels > 1).float(), model(x).squeeze(1))

    return train(model, loss, steps=1)


@fault("loss-arguments-swapped", "")
def labels_before_logits() -> Setup:
    model: Any = nn.Sequential(mlp(16, 32, 1), nn.Sigmoid())

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.binary_cross_entropy_with_logits((labels > 1).float(), model(x).squeeze(1))

    return train(model, loss)


@fault("no-targets", "", ["non-finite-output", "non-finite-gradient", "non-finite-weights"])
def labels_are_all_ignored() -> Setup:
    """NaN spreads from the loss."""
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.cross_entropy(model(x), torch.full_like(labels, -100))

    return train(model, loss)


@fault("no-targets", "", ["zero-gradient"])
def loss_mask_of_zeros() -> Setup:
    """The mask is inverted: no token is padding."""
    model: Any = Decoder(depth=2)

    def loss(i: int) -> Tensor:
        x, y = texts(i)
        losses = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
        mask = torch.zeros_like(losses)
        return (losses * mask).sum() / mask.sum().clamp(min=1)

    return train(model, loss, steps=3)


@fault("no-targets", "", ["non-finite-output", "non-finite-gradient", "non-finite-weights"])
def selection_without_tokens() -> Setup:
    """The mean of an empty selection is NaN."""
    model: Any = LSTMModel()

    def loss(i: int) -> Tensor:
        x, y = texts(i)
        losses = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
        return losses[y < 0].mean()

    return train(model, loss, steps=3)


@fault("constant-targets", "")
def labels_of_one_class() -> Setup:
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.cross_entropy(model(x), labels // 4)

    return train(model, loss)


@fault("constant-targets", "")
def regression_on_a_constant() -> Setup:
    model: Any = mlp(16, 32, 1)

    def loss(i: int) -> Tensor:
        x, _ = points(i)
        loss: Tensor = (model(x) - torch.full((len(x), 1), 3.0)).abs().mean()
        return loss

    return train(model, loss)


@fault("targets-equal-inputs", "")
def decoder_without_shift() -> Setup:
    model: Any = Decoder(depth=2)

    def loss(i: int) -> Tensor:
        x, _ = texts(i)
        return F.cross_entropy(model(x).flatten(0, 1), x.flatten())

    return train(model, loss)


@fault("targets-equal-inputs", "")
def lstm_without_shift() -> Setup:
    model: Any = LSTMModel()

    def loss(i: int) -> Tensor:
        x, _ = texts(i)
        return F.nll_loss(model(x).log_softmax(-1).transpose(1, 2), x)

    return train(model, loss)


@fault("label-smoothing-too-large", "")
def smoothing_of_08() -> Setup:
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.cross_entropy(model(x), labels, label_smoothing=0.8)

    return train(model, loss)


@fault("label-smoothing-too-large", "")
def binary_labels_smoothed_by_hand() -> Setup:
    model: Any = mlp(16, 32, 1)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.binary_cross_entropy_with_logits(model(x).squeeze(1), 0.4 + 0.2 * (labels > 1))

    return train(model, loss)


@fault("class-weight-zero", "")
def integer_division_of_class_weights() -> Setup:
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.cross_entropy(model(x), labels, weight=torch.tensor([1.0, 0.0, 0.0, 1.0]))

    return train(model, loss)


@fault("class-weight-zero", "")
def one_of_two_classes_without_weight() -> Setup:
    model: Any = mlp(16, 32, 2)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.nll_loss(model(x).log_softmax(1), labels // 2, weight=torch.tensor([1.0, 0.0]))

    return train(model, loss)


def _triplets(i: int) -> tuple[Tensor, Tensor, Tensor]:
    x, labels = points(i, count=128)
    first, second = x[labels == 0], x[labels == 1]
    n = min(len(first), len(second)) // 2
    return first[:n], first[n : 2 * n], second[:n]


@fault("anchor-equals-positive", "")
def positive_is_the_anchor() -> Setup:
    model: Any = mlp(16, 32, 8)

    def loss(i: int) -> Tensor:
        anchor, _, negative = map(model, _triplets(i))
        return F.triplet_margin_loss(anchor, anchor, negative)

    return train(model, loss)


@fault("anchor-equals-positive", "")
def positive_has_the_same_index() -> Setup:
    model: Any = mlp(16, 32, 8)

    def loss(i: int) -> Tensor:
        anchor, _, negative = _triplets(i)
        return F.triplet_margin_loss(model(anchor), model(anchor.clone()), model(negative), margin=0.5)

    return train(model, loss)


@fault("triplets-swapped", "")
def positive_and_negative_in_wrong_order() -> Setup:
    model: Any = mlp(16, 32, 8)

    def loss(i: int) -> Tensor:
        anchor, positive, negative = map(model, _triplets(i))
        return F.triplet_margin_loss(anchor, negative, positive)

    return train(model, loss)


@fault("triplets-swapped", "")
def batch_of_triplets_in_wrong_order() -> Setup:
    """One pass of the model for all, and the order of the parts is not that of the loss."""
    model: Any = mlp(16, 32, 8)

    def loss(i: int) -> Tensor:
        anchor, positive, negative = _triplets(i)
        parts = F.normalize(model(torch.cat([anchor, negative, positive]))).chunk(3)
        loss: Tensor = nn.TripletMarginLoss(margin=0.3)(*parts)
        return loss

    return train(model, loss)


@fault("kl-divided-by-classes", "", note=True)
def kl_divergence_with_mean() -> Setup:
    model, teacher = mlp(16, 32, 4), mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, _ = points(i)
        return F.kl_div(model(x).log_softmax(1), teacher(x).softmax(1).detach())

    return train(model, loss)


@fault("kl-divided-by-classes", "", note=True)
def kl_divergence_of_log_targets_with_mean() -> Setup:
    model, teacher = mlp(16, 32, 4), mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, _ = points(i)
        loss: Tensor = nn.KLDivLoss(log_target=True)(model(x).log_softmax(1), teacher(x).log_softmax(1).detach())
        return loss

    return train(model, loss)


@fault("targets-shifted-twice", "")
def labels_shifted_by_dataset_and_loss() -> Setup:
    model: Any = Decoder(depth=1)

    def loss(i: int) -> Tensor:
        x, y = texts(i)
        return F.cross_entropy(model(x)[:, :-1].flatten(0, 1), y[:, 1:].flatten())

    return train(model, loss)


@fault("targets-shifted-twice", "", needs="transformers")
def shifted_labels_for_a_model_that_shifts() -> Setup:
    model: Any = gpt2(depth=1)

    def loss(i: int) -> Tensor:
        x, y = texts(i)
        value: Tensor = model(input_ids=x, labels=y.contiguous()).loss
        return value

    return train(model, loss)
