"""Training loops whose steps do nothing, or not what they should, and settings of optimizers that prevent learning."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, fault
from tests.diagnostics.networks import Decoder, convnet, mlp
from tests.diagnostics.tasks import classify, images, points, predict_next

STEPS = 12


def _loop(
    model: Any, optimizer: torch.optim.Optimizer, after: Callable[[], Any] = lambda: None, batch: Any = None
) -> Setup:
    """The usual loop, and something after each step."""
    batch = batch or classify(model)

    def run() -> None:
        for number in range(STEPS):
            optimizer.zero_grad()
            batch(number)().backward()
            optimizer.step()
            after()

    return model, run


@fault("weights-unchanged", "")
def step_never_called() -> Setup:
    model: Any = mlp(16, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        for number in range(STEPS):
            optimizer.zero_grad()
            classify(model)(number)().backward()

    return model, run


@fault("weights-unchanged", "")
def step_never_called_with_model_zero_grad() -> Setup:
    model: Any = mlp(16, 64, 4)

    def run() -> None:
        for number in range(STEPS):
            model.zero_grad()
            classify(model)(number)().backward()

    return model, run


@fault("weights-unchanged", "")
def backward_never_called() -> Setup:
    model: Any = convnet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        for number in range(STEPS):
            optimizer.zero_grad()
            classify(model, images)(number)()
            optimizer.step()

    return model, run


@fault("weights-unchanged", "")
def gradients_zeroed_before_the_step() -> Setup:
    model: Any = Decoder(depth=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        for number in range(4):
            predict_next(model)(number)().backward()
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()

    return model, run


@fault("weights-unchanged", "")
def lr_of_zero() -> Setup:
    model: Any = mlp(16, 64, 4)
    return _loop(model, torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9))


@fault("weights-unchanged", "", ["update-too-small"])
def steps_below_rounding() -> Setup:
    model: Any = mlp(16, 64, 4)
    return _loop(model, torch.optim.SGD(model.parameters(), lr=1e-30))


@fault("weights-unchanged", "2", ["no-gradient"])
def optimizer_of_the_head_never_steps() -> Setup:
    """Only its zero_grad() is called."""
    model: Any = mlp(16, 64, 4)
    body = torch.optim.SGD(model[0].parameters(), lr=0.1)
    head = torch.optim.SGD(model[2].parameters(), lr=0.1)

    def run() -> None:
        for number in range(20):
            body.zero_grad()
            head.zero_grad()
            classify(model)(number)().backward()
            body.step()

    return model, run


@fault("graph-cut", "")
def share_of_wrong_classes_as_loss() -> Setup:
    model: Any = mlp(16, 64, 4)

    def batch(number: int) -> Callable[[], Tensor]:
        x, labels = points(number)
        return lambda: (model(x).argmax(1) != labels).float().mean().requires_grad_()

    return _loop(model, torch.optim.SGD(model.parameters(), lr=0.1), batch=batch)


def _scaled(model: Any, scale: float, factor: float) -> Setup:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        for number in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(factor * classify(model)(number)()).backward()
            scaler.step(optimizer)
            scaler.update()

    return model, run


@fault("scaler-skips-steps", "", ["non-finite-gradient", "non-finite-output"])
def scaler_overflows() -> Setup:
    """The loss has a finite value, but its gradient times the scale is infinite."""
    return _scaled(mlp(16, 64, 4), 2.0**120, 1e30)


@fault("scaler-skips-steps", "", ["non-finite-gradient", "non-finite-output"])
def scaler_gets_nan() -> Setup:
    return _scaled(mlp(16, 64, 4), 2.0**16, float("nan"))


@fault("steps-repeated", "")
def two_steps_per_backward() -> Setup:
    model: Any = mlp(16, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return _loop(model, optimizer, optimizer.step)


@fault("steps-repeated", "")
def step_in_the_helper_and_in_the_loop() -> Setup:
    model: Any = convnet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return _loop(model, optimizer, optimizer.step, classify(model, images))


@fault("schedule-too-fast", "")
def exponential_lr_per_batch() -> Setup:
    model: Any = mlp(16, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return _loop(model, optimizer, lambda: scheduler.step())


@fault("schedule-too-fast", "")
def cosine_of_epochs_per_batch() -> Setup:
    model: Any = mlp(16, 64, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    return _loop(model, optimizer, lambda: scheduler.step())


@fault("schedule-too-fast", "")
def polynomial_lr_ended() -> Setup:
    model: Any = mlp(16, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=3)
    return _loop(model, optimizer, lambda: scheduler.step())


@fault("loss-maximized", "")
def cross_entropy_maximized() -> Setup:
    model: Any = mlp(16, 64, 4)
    return _loop(model, torch.optim.SGD(model.parameters(), lr=0.01, maximize=True))


@fault("loss-maximized", "")
def squared_error_maximized() -> Setup:
    model: Any = mlp(16, 64, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, maximize=True)
    return _loop(model, optimizer, batch=lambda i: lambda: F.mse_loss(model(points(i)[0]), points(i)[0][:, :1]))


def _clipped(model: Any, optimizer: torch.optim.Optimizer, limit: float) -> Setup:
    def run() -> None:
        for number in range(STEPS):
            optimizer.zero_grad()
            classify(model)(number)().backward()
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()

    return model, run


@fault("clipping-always", "")
def clipped_to_a_ten_thousandth() -> Setup:
    model: Any = mlp(16, 64, 4)
    return _clipped(model, torch.optim.SGD(model.parameters(), lr=0.1), 1e-4)


@fault("clipping-always", "", ["optimizer-eps-dominates"])
def clipped_to_a_millionth_with_adam() -> Setup:
    """The clipped gradients are no larger than eps."""
    model: Any = mlp(16, 64, 4)
    return _clipped(model, torch.optim.AdamW(model.parameters(), lr=1e-3), 1e-9)


@fault("weight-decay-dominates", "")
def adamw_with_weight_decay_of_20() -> Setup:
    model: Any = mlp(16, 64, 4)
    return _loop(model, torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=20.0))


@fault("weight-decay-dominates", "")
def adam_with_l2_of_three() -> Setup:
    model: Any = convnet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=3.0)
    return _loop(model, optimizer, batch=classify(model, images))


@fault("optimizer-eps-dominates", "")
def adam_with_eps_of_a_tenth() -> Setup:
    model: Any = Decoder(depth=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, eps=0.1)
    return _loop(model, optimizer, batch=predict_next(model))


@fault("optimizer-eps-dominates", "")
def rmsprop_with_eps_of_ten() -> Setup:
    model: Any = mlp(16, 64, 4)
    return _loop(model, torch.optim.RMSprop(model.parameters(), lr=1e-3, eps=10.0))


@fault("updates-lost-to-rounding", "", ["update-too-small"])
def bfloat16_weights_at_1e_minus_6() -> Setup:
    model: Any = mlp(16, 64, 4).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    batch = lambda i: lambda: F.cross_entropy(model(points(i)[0].bfloat16()).float(), points(i)[1])  # noqa: E731
    return _loop(model, optimizer, batch=batch)


@fault("updates-lost-to-rounding", "")
def bfloat16_decoder_with_small_sgd_steps() -> Setup:
    model: Any = Decoder(depth=2).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    return _loop(model, optimizer, batch=predict_next(model))


@fault("momentum-too-large", "", ["update-too-large"])
def momentum_of_0_9999() -> Setup:
    model: Any = mlp(16, 64, 4)
    return _loop(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9999))


@fault("momentum-too-large", "")
def momentum_of_one() -> Setup:
    model: Any = convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=1.0)
    return _loop(model, optimizer, batch=classify(model, images))


@fault("betas-swapped", "")
def betas_in_the_wrong_order() -> Setup:
    model: Any = mlp(16, 64, 4)
    return _loop(model, torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.999, 0.9)))


@fault("betas-swapped", "")
def gan_betas_in_the_wrong_order() -> Setup:
    model: Any = convnet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.999, 0.5))
    return _loop(model, optimizer, batch=classify(model, images))


@fault("clipping-always", "")
def clipped_by_value() -> Setup:
    model: Any = mlp(16, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        for number in range(STEPS):
            optimizer.zero_grad()
            classify(model)(number)().backward()
            nn.utils.clip_grad_value_(model.parameters(), 1e-5)
            optimizer.step()

    return model, run


@fault("update-too-small", "")
def sgd_at_1e_minus_7() -> Setup:
    model: Any = mlp(16, 64, 4)
    return _loop(model, torch.optim.SGD(model.parameters(), lr=1e-7))


@fault("weights-unchanged", "")
def only_the_schedule_steps() -> Setup:
    model: Any = mlp(16, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)

    def run() -> None:
        for number in range(STEPS):
            classify(model)(number)().backward()
            scheduler.step()

    return model, run


@fault("optimizer-recreated", "")
def adam_created_in_each_step() -> Setup:
    model: Any = mlp(16, 64, 4)

    def run() -> None:
        for number in range(STEPS):
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
            optimizer.zero_grad()
            classify(model)(number)().backward()
            optimizer.step()

    return model, run


@fault("optimizer-recreated", "")
def momentum_lost_in_each_step() -> Setup:
    model: Any = convnet()

    def train(number: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        model.zero_grad()
        classify(model, images)(number)().backward()
        optimizer.step()

    def run() -> None:
        for number in range(STEPS):
            train(number)

    return model, run
