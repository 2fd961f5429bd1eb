"""Correct training loops of many kinds: schedules, several optimizers, copies of models, evaluation, half precision."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

from tests.diagnostics.cases import Setup, adamw, healthy, run_steps
from tests.diagnostics.networks import convnet, mlp
from tests.diagnostics.tasks import classify, images, points

STEPS = 16


def with_dropout() -> Any:
    return nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))


def _scheduled(make: Callable[[Any], Any], per_epoch: int = 1, lr: float = 0.05, epochs: bool = False) -> Setup:
    model: Any = mlp(16, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scheduler = make(optimizer)

    def run() -> None:
        for number in range(STEPS):
            run_steps([classify(model)(number)], optimizer)
            if number % per_epoch == per_epoch - 1:
                scheduler.step()

    return model, run


@healthy((0, 1, 2, 3, 4, 5))
def schedules(seed: int) -> Setup:
    """Whole short trainings: they end at a learning rate of almost zero, or begin there."""
    makers: list[Callable[[Any], Any]] = [
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS),
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=STEPS + 1),
        lambda o: lr_scheduler.LambdaLR(o, lambda step: step / STEPS),
        lambda o: lr_scheduler.PolynomialLR(o, total_iters=STEPS, power=2),
        lambda o: lr_scheduler.ExponentialLR(o, 0.97),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=5),
    ]
    return _scheduled(makers[seed])


@healthy((0, 1))
def schedules_of_epochs(seed: int) -> Setup:
    """Epochs of four batches."""
    if seed:
        return _scheduled(lambda o: lr_scheduler.StepLR(o, step_size=1, gamma=0.3), per_epoch=4)
    return _scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=4), per_epoch=4)


@healthy((0, 1))
def full_batch_with_exponential_lr(seed: int) -> Setup:
    """Each step is an epoch."""
    model: Any = mlp(16, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.85)
    x, labels = points(seed)

    def run() -> None:
        for _ in range(STEPS):
            run_steps([lambda: F.cross_entropy(model(x), labels)], optimizer)
            scheduler.step()

    return model, run


@healthy((0, 1, 2, 3, 4))
def optimizer_settings(seed: int) -> Setup:
    """Unusual settings in use: weight decay of 1 (grokking), a large eps with a large rate, sums clipped to 1."""
    model: Any = mlp(16, 64, 4)
    parameters = list(model.parameters())
    optimizers: list[Callable[[], torch.optim.Optimizer]] = [
        lambda: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1.0),
        lambda: torch.optim.RMSprop(parameters, lr=0.045, eps=1.0, momentum=0.9),
        lambda: torch.optim.SGD(parameters, lr=0.01, momentum=0.99, nesterov=True, weight_decay=5e-4),
        lambda: torch.optim.Adam(parameters, lr=1e-3, betas=(0.0, 0.9), eps=1e-5, weight_decay=1e-4),
        lambda: torch.optim.AdamW(parameters, lr=1e-3),
    ]
    optimizer = optimizers[seed]()

    def run() -> None:
        for number in range(STEPS):
            optimizer.zero_grad()
            (64 * classify(model)(number)() if seed == 4 else classify(model)(number)()).backward()
            if seed == 4:
                nn.utils.clip_grad_norm_(parameters, 0.1)
            optimizer.step()

    return model, run


@healthy((0, 1))
def accumulation_without_a_step(seed: int) -> Setup:
    """The x-ray sees only some of the batches of one step."""
    model: Any = mlp(16, 64, 4)
    optimizer = adamw(model)

    def run() -> None:
        optimizer.zero_grad()
        for number in range(12):
            (classify(model)(number)() / 32).backward()

    return model, run


@healthy((0, 1))
def scaler_skips_two_steps(seed: int) -> Setup:
    model: Any = mlp(16, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def run() -> None:
        for number in range(STEPS):
            optimizer.zero_grad()
            factor = math.inf if number < 2 else 1.0
            scaler.scale(factor * classify(model)(seed + number)()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    return model, run


@healthy((0, 1))
def float32_weights_of_a_bfloat16_model(seed: int) -> Setup:
    """The optimizer has copies in float32, from which the weights of the model are set after each step."""
    model: Any = mlp(16, 64, 4).bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-2)

    def run() -> None:
        for number in range(STEPS):
            x, labels = points(seed + number)
            model.zero_grad()
            F.cross_entropy(model(x.bfloat16()).float(), labels).backward()
            for master, p in zip(masters, model.parameters(), strict=True):
                master.grad = p.grad.float()
            optimizer.step()
            with torch.no_grad():
                for master, p in zip(masters, model.parameters(), strict=True):
                    p.copy_(master)

    return model, run


class _Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
        self.critic = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(64, 1))


@healthy((0, 1, 2, 3))
def gan(seed: int) -> Setup:
    """Generator and critic in turns: fakes detached, under no_grad, or with a graph; one or five critic steps."""
    model: Any = _Gan()
    opt_g = torch.optim.Adam(model.generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    opt_c = torch.optim.Adam(model.critic.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def judge(x: Tensor, wanted: float) -> Tensor:
        y = model.critic(x)
        return F.binary_cross_entropy_with_logits(y, torch.full_like(y, wanted))

    def run() -> None:
        for number in range(STEPS):
            z = torch.randn(64, 4)
            opt_c.zero_grad()
            with torch.set_grad_enabled(seed != 1):
                fake = model.generator(z)
            (judge(points(number)[0], 1.0) + judge(fake if seed == 2 else fake.detach(), 0.0)).backward()
            opt_c.step()
            if seed != 3 or number % 5 == 4:
                opt_g.zero_grad()
                judge(model.generator(z), 1.0).backward()
                opt_g.step()

    return model, run


@healthy((0, 1))
def two_steps_of_the_critic_only(seed: int) -> Setup:
    """The generator's turn is not among them, though the loss of the critic gives it gradients."""
    model: Any = _Gan()
    model.critic = mlp(16, 32, 1)
    optimizer = torch.optim.Adam(model.critic.parameters(), lr=2e-4)
    batches = [lambda: model.critic(model.generator(torch.randn(64, 4))).square().mean()] * (2 + seed)
    return model, lambda: run_steps(batches, optimizer)


def _follow(target: nn.Module, source: nn.Module, decay: float) -> None:
    with torch.no_grad():
        for a, p in zip(target.parameters(), source.parameters(), strict=True):
            a.data.mul_(decay).add_(p.data, alpha=1 - decay)


@healthy((0, 1, 2))
def value_network_with_target(seed: int) -> Setup:
    """The target follows slowly, is replaced every five steps, or later than the x-ray sees."""
    online = mlp(16, 64, 4)
    model: Any = nn.ModuleDict({"online": online, "target": copy.deepcopy(online)})
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)

    def objective(number: int) -> Tensor:
        x = points(number)[0]
        with torch.no_grad():
            wanted = x[:, 0] + 0.9 * model["target"](x.roll(1, 0)).max(1).values
        return F.smooth_l1_loss(model["online"](x)[:, 0], wanted)

    def run() -> None:
        for number in range(STEPS):
            run_steps([lambda number=number: objective(number)], optimizer)  # type: ignore[misc]
            if seed == 0:
                _follow(model["target"], online, 0.99)
            elif seed == 1 and number % 5 == 4:
                model["target"].load_state_dict(online.state_dict())

    return model, run


@healthy((0, 1))
def momentum_encoder(seed: int) -> Setup:
    """The key encoder runs in training mode without gradients, and follows the query encoder (MoCo, BYOL)."""
    encoder_q = with_dropout()
    model: Any = nn.ModuleDict({"encoder_q": encoder_q, "encoder_k": copy.deepcopy(encoder_q).requires_grad_(False)})
    optimizer = torch.optim.SGD(encoder_q.parameters(), lr=0.03, momentum=0.9)

    def objective(number: int) -> Tensor:
        x = points(number)[0]
        q = F.normalize(model["encoder_q"](x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            _follow(model["encoder_k"], encoder_q, 0.99)
            k = F.normalize(model["encoder_k"](x), dim=1)
        return F.cross_entropy(q @ k.T / 0.2, torch.arange(len(x)))

    return model, lambda: run_steps([lambda i=i: objective(i) for i in range(STEPS)], optimizer)  # type: ignore[misc]


@healthy((0, 1))
def actor_and_critic(seed: int) -> Setup:
    """The actor's loss gives the critic gradients too, which the critic's optimizer resets."""
    model: Any = nn.ModuleDict({"actor": mlp(16, 32, 2), "critic": mlp(18, 64, 1)})
    model["critic_target"] = copy.deepcopy(model["critic"]).requires_grad_(False)
    opt_a = torch.optim.Adam(model["actor"].parameters(), lr=3e-4)
    opt_c = torch.optim.Adam(model["critic"].parameters(), lr=3e-4)

    def run() -> None:
        for number in range(STEPS):
            x = points(seed + number)[0]
            with torch.no_grad():
                following = torch.cat([x, model["actor"](x).tanh()], 1)
                wanted = x[:, :1] + 0.9 * model["critic_target"](following)
            opt_c.zero_grad()
            F.mse_loss(model["critic"](torch.cat([x, torch.randn(64, 2)], 1)), wanted).backward()
            opt_c.step()
            opt_a.zero_grad()
            (-model["critic"](torch.cat([x, model["actor"](x).tanh()], 1)).mean()).backward()
            opt_a.step()
            _follow(model["critic_target"], model["critic"], 0.995)

    return model, run


@healthy((0, 1))
def two_towers(seed: int) -> Setup:
    """Both encoders are trained, and each is the target of the other."""
    model: Any = nn.ModuleDict({"source_encoder": mlp(16, 32, 8), "target_encoder": mlp(16, 32, 8)})

    def objective(number: int) -> Tensor:
        x = points(number)[0]
        a, b = model["source_encoder"](x), model["target_encoder"](x + 0.1)
        spread = F.relu(1 - a.std(0)).mean() + F.relu(1 - b.std(0)).mean()
        return F.mse_loss(a, b) + spread

    optimizer = adamw(model)
    return model, lambda: run_steps([lambda i=i: objective(i) for i in range(STEPS)], optimizer)  # type: ignore[misc]


@healthy((0, 1, 2, 3))
def passes_without_gradients_in_each_step(seed: int) -> Setup:
    """Pseudo labels, or a first guess, of the model in training mode; MC dropout; statistics of batch norm."""
    model = with_dropout()
    optimizer = adamw(model)

    def run() -> None:
        for number in range(STEPS):
            x, labels = points(number)
            if seed < 2:
                with torch.no_grad():
                    for _ in range(1 + seed):
                        labels = model(x + 0.1 * torch.randn_like(x)).argmax(1)
            run_steps([lambda x=x, labels=labels: F.cross_entropy(model(x), labels)], optimizer)  # type: ignore[misc]
        if seed == 2:
            x = points(100)[0]
            with torch.no_grad():
                torch.stack([model(x) for _ in range(10)]).std(0)
        if seed == 3:
            batches = [points(number)[0] for number in range(4)]
            torch.optim.swa_utils.update_bn(batches, model)

    return model, run


@healthy((0, 1, 2))
def evaluation_in_eval_mode(seed: int) -> Setup:
    """Also with gradients, as for adversarial examples, and with an average of the weights."""
    model = with_dropout()
    optimizer = adamw(model)
    average = torch.optim.swa_utils.AveragedModel(model)

    def run() -> None:
        for number in range(STEPS):
            x, labels = points(number)
            if seed == 1:
                model.eval()
                x.requires_grad_()
                F.cross_entropy(model(x), labels).backward()
                assert x.grad is not None
                x = (x + 0.1 * x.grad.sign()).detach()
            model.train()
            run_steps([lambda x=x, labels=labels: F.cross_entropy(model(x), labels)], optimizer)  # type: ignore[misc]
            average.update_parameters(model)
            if number % 5 == 4:
                model.eval()
                with torch.set_grad_enabled(seed == 2):
                    for _ in range(3):
                        model(points(50)[0])
                        average(points(50)[0])

    return model, run


class _Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = with_dropout()[:4].requires_grad_(False).eval()
        self.head = nn.Linear(64, 4)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Any:
        return self.head(self.backbone(x))


@healthy((0, 1))
def frozen_backbone_in_eval_mode(seed: int) -> Setup:
    """The optimizer gets all parameters, or one for the frozen ones steps too."""
    model: Any = _Adapted().train()
    optimizers = [adamw(model)] if seed == 0 else [adamw(model.head), adamw(model.backbone)]

    def run() -> None:
        for number in range(STEPS):
            for optimizer in optimizers:
                optimizer.zero_grad()
            classify(model)(number)().backward()
            for optimizer in optimizers:
                optimizer.step()

    return model, run


@healthy((0, 1))
def optimizers_of_several_kinds(seed: int) -> Setup:
    """One for matrices and one for the rest, one of which waits for four batches; a closure; sharpness (SAM)."""
    model: Any = convnet()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    fast, slow = torch.optim.SGD(matrices, lr=0.01), torch.optim.Adam(rest, lr=1e-3)

    def gradients(number: int) -> Tensor:
        loss = classify(model, images)(number)()
        loss.backward()
        return loss

    def run() -> None:
        for number in range(STEPS):
            fast.zero_grad()
            if seed:
                gradients(number)
                moves = [0.01 * p.grad for p in matrices]
                with torch.no_grad():
                    torch._foreach_add_(matrices, moves)
                fast.zero_grad()
                gradients(number)
                with torch.no_grad():
                    torch._foreach_sub_(matrices, moves)
                fast.step()
            else:
                fast.step(lambda number=number: gradients(number))
            if number % 4 == 3:
                slow.step()
                slow.zero_grad()

    return model, run


@healthy((0, 1))
def gradients_looked_at(seed: int) -> Setup:
    """Squared gradients of each sample, as for the Fisher information, without an optimizer."""
    model: Any = with_dropout().eval()

    def run() -> None:
        x, labels = points(seed)
        for i in range(STEPS):
            model.zero_grad()
            F.cross_entropy(model(x[i : i + 1]), labels[i : i + 1]).backward()
            assert all(p.grad.square().sum() >= 0 for p in model.parameters())

    return model, run


@healthy((0, 1))
def unfrozen_in_the_middle(seed: int) -> Setup:
    """The first layer is frozen for the first steps."""
    model: Any = mlp(16, 64, 4)
    model[0].requires_grad_(False)
    optimizer = adamw(model)

    def run() -> None:
        for number in range(STEPS):
            if number == STEPS // 2:
                model[0].requires_grad_(True)
            run_steps([classify(model)(seed + number)], optimizer)

    return model, run


@healthy((0, 1))
def self_conditioning(seed: int) -> Setup:
    """Every second step, by chance, begins with a pass without gradients whose output is an input of the next."""
    model = with_dropout()
    optimizer = adamw(model)

    def objective(number: int) -> Tensor:
        x, labels = points(number)
        if torch.rand(()) < 0.5:
            with torch.no_grad():
                x = x + 0.1 * model(x).mean()
        return F.cross_entropy(model(x), labels)

    return model, lambda: run_steps([lambda i=i: objective(i) for i in range(30)], optimizer)  # type: ignore[misc]


@healthy((0, 1))
def two_losses_of_one_body(seed: int) -> Setup:
    """Two backward passes, then steps of three optimizers: each head has the gradients of its own loss only."""
    model: Any = nn.ModuleDict({"body": mlp(16, 32, 8), "first": nn.Linear(8, 4), "second": nn.Linear(8, 4)})
    optimizers = [adamw(part) for part in model.values()]

    def run() -> None:
        for number in range(STEPS):
            x, labels = points(seed + number)
            for optimizer in optimizers:
                optimizer.zero_grad()
            h = model["body"](x)
            F.cross_entropy(model["first"](h), labels).backward(retain_graph=True)
            F.cross_entropy(model["second"](h), labels).backward()
            for optimizer in optimizers:
                optimizer.step()

    return model, run


@healthy()
def gradient_descent_by_hand(seed: int) -> Setup:
    """Each step is small, but all of them together change the weights by more than one step should."""
    model: Any = mlp(16, 64, 4)

    def run() -> None:
        for number in range(40):
            loss = classify(model)(number)()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= 0.5 * gradient

    return model, run
