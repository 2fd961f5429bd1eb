"""Healthy setups on vectors: classification, regression, small reinforcement learning, pairs of models."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.register import ordinary
from tests.diagnostics.corpus.tuning._data import blobs, line, loader, two_classes


class MLP(nn.Module):
    def __init__(self, inputs: int = 10, hidden: int = 32, outputs: int = 3, p: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.drop = nn.Dropout(p)
        self.fc3 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.fc1(x))
        x = self.drop(F.relu(self.fc2(x)))
        return self.fc3(x)


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[Any, Tensor], Tensor] = F.cross_entropy,
    data: Callable[[int], tuple[Tensor, Tensor]] = blobs,
    steps: int = 15,
    batch_size: int = 32,
) -> None:
    """The everyday loop over new samples."""
    model.train()
    for _ in range(steps):
        x, y = data(batch_size)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()


@ordinary
def mlp_with_adam() -> Setup:
    model = MLP()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    train, test = loader(*blobs(160)), loader(*blobs(64), shuffle=False)

    def run() -> None:
        for _epoch in range(2):
            model.train()
            for inputs, labels in train:
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for inputs, labels in test:
                    model(inputs).argmax(1).eq(labels).float().mean()

    return model, run


@ordinary
def mlp_with_sgd_momentum_and_cosine() -> Setup:
    model = MLP(p=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)

    def run() -> None:
        for _ in range(3):
            fit(model, optimizer, steps=6)
            scheduler.step()

    return model, run


@ordinary
def after_two_hundred_steps() -> Setup:
    model = MLP()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def noisy(count: int) -> tuple[Tensor, Tensor]:
        x, y = blobs(count)
        return x + 2.5 * torch.randn_like(x), y

    fit(model, optimizer, data=noisy, steps=200)

    def run() -> None:
        fit(model, optimizer, data=noisy)

    return model, run


@ordinary
def binary_classifier_with_logits() -> Setup:
    model = MLP(8, 32, 1)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(1.5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        fit(model, optimizer, lambda out, y: criterion(out.squeeze(1), y), two_classes, 20)

    return model, run


@ordinary
def binary_classifier_with_sigmoid_and_bce() -> Setup:
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1), nn.Sigmoid())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)

    def run() -> None:
        fit(model, optimizer, lambda out, y: F.binary_cross_entropy(out.flatten(), y), two_classes, 20)

    return model, run


@ordinary
def log_softmax_and_nll() -> Setup:
    model = nn.Sequential(nn.Linear(10, 32), nn.ELU(), nn.Linear(32, 3), nn.LogSoftmax(dim=1))
    criterion = nn.NLLLoss()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)

    def run() -> None:
        fit(model, optimizer, criterion)

    return model, run


@ordinary
def label_smoothing_of_01() -> Setup:
    model = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        fit(model, optimizer, nn.CrossEntropyLoss(label_smoothing=0.1))

    return model, run


def focal(logits: Tensor, target: Tensor, gamma: float = 2.0) -> Tensor:
    log_p = logits.log_softmax(-1).gather(1, target[:, None]).squeeze(1)
    return (-((1 - log_p.exp()) ** gamma) * log_p).mean()


@ordinary
def focal_loss() -> Setup:
    model = MLP()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        fit(model, optimizer, focal)

    return model, run


@ordinary
def regression_with_standardized_targets() -> Setup:
    """Prices in hundred thousands, standardized for training."""
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = line(240)
    price = 250_000 + 80_000 * y
    target = ((price - price.mean()) / price.std()).unsqueeze(1)
    criterion = nn.MSELoss()

    def run() -> None:
        for xb, yb in loader(x, target):
            loss = criterion(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


@ordinary
def robust_regression_with_huber() -> Setup:
    model = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 1), nn.Flatten(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    def run() -> None:
        fit(model, optimizer, nn.HuberLoss(), line, 20)

    return model, run


class MeanAndVariance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.mean, self.log_var = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.mean(h).squeeze(1), self.log_var(h).squeeze(1)


@ordinary
def heteroscedastic_regression() -> Setup:
    model = MeanAndVariance()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        fit(model, optimizer, lambda out, y: F.gaussian_nll_loss(out[0], y, out[1].exp()), line, 20)

    return model, run


@ordinary
def quantile_regression() -> Setup:
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    quantiles = torch.tensor([0.1, 0.5, 0.9])

    def pinball(out: Tensor, y: Tensor) -> Tensor:
        error = y[:, None] - out
        return torch.maximum(quantiles * error, (quantiles - 1) * error).mean()

    def run() -> None:
        fit(model, optimizer, pinball, line, 20)

    return model, run


@ordinary
def tiny_batches_with_accumulation() -> Setup:
    model = MLP()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    accumulate = 4

    def run() -> None:
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader(*blobs(192), batch_size=4)):
            loss = F.cross_entropy(model(x), y) / accumulate
            loss.backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()

    return model, run


@ordinary
def one_cycle() -> Setup:
    model = nn.Sequential(nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train = loader(*blobs(320))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, steps_per_epoch=len(train), epochs=2)

    def run() -> None:
        for _ in range(2):
            for x, y in train:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                scheduler.step()

    return model, run


@ordinary
def lbfgs_with_a_closure() -> Setup:
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    x, y = line(96)

    def run() -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x).squeeze(1), y)
            loss.backward()
            return loss

        for _ in range(4):
            optimizer.step(closure)

    return model, run


@ordinary
def weight_normalization() -> Setup:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(10, 32)), nn.ReLU(), parametrizations.weight_norm(nn.Linear(32, 3))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        fit(model, optimizer)

    return model, run


@ordinary
def spectral_normalization() -> Setup:
    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(10, 32)),
        nn.LeakyReLU(0.1),
        nn.Linear(32, 32),
        nn.LeakyReLU(0.1),
        nn.Linear(32, 3),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        fit(model, optimizer)

    return model, run


class ResidualMLP(nn.Module):
    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Linear(10, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


@ordinary
def residual_mlp_with_bfloat16_autocast() -> Setup:
    model = ResidualMLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def run() -> None:
        for x, y in loader(*blobs(240)):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return model, run


class Tabular(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(n, 4) for n in (6, 12, 3))
        self.bn = nn.BatchNorm1d(5)
        self.layers = nn.Sequential(nn.Linear(17, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, categories: Tensor, numbers: Tensor) -> Any:
        parts = [embedding(categories[:, i]) for i, embedding in enumerate(self.embeddings)]
        return self.layers(torch.cat([*parts, self.bn(numbers)], 1)).squeeze(1)


@ordinary
def tabular_with_embeddings() -> Setup:
    model = Tabular()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    categories = torch.stack([torch.randint(n, (320,)) for n in (6, 12, 3)], 1)
    numbers = torch.randn(320, 5)
    y = numbers[:, 0] + 0.2 * categories[:, 0] - (categories[:, 2] == 1).float()

    def run() -> None:
        for c, n, target in loader(categories, numbers, y):
            loss = F.mse_loss(model(c, n), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class Factorization(nn.Module):
    def __init__(self, users: int = 40, items: int = 30, dim: int = 8) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim, sparse=True), nn.Embedding(items, dim, sparse=True)
        nn.init.normal_(self.user.weight, std=0.5)
        nn.init.normal_(self.item.weight, std=0.5)

    def forward(self, user: Tensor, item: Tensor) -> Any:
        return (self.user(user) * self.item(item)).sum(1)


@ordinary
def matrix_factorization_with_sparse_adam() -> Setup:
    model = Factorization()
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
    user, item = torch.randint(40, (480,)), torch.randint(30, (480,))
    rating = ((user % 3) == (item % 3)).float() * 2 - 1

    def run() -> None:
        for u, i, r in loader(user, item, rating, batch_size=32):
            optimizer.zero_grad()
            F.mse_loss(model(u, i), r).backward()
            optimizer.step()

    return model, run


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Linear(10, 16, bias=False), nn.Linear(16, 3, bias=False)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor, adjacency: Tensor) -> Any:
        x = F.relu(adjacency @ self.conv1(x))
        return adjacency @ self.conv2(self.dropout(x))


@ordinary
def graph_convolution_on_one_graph() -> Setup:
    """The whole graph is the batch of each step, as always with a GCN."""
    model = GCN()
    x, y = blobs(60)
    edges = ((y[:, None] == y) & (torch.rand(60, 60) < 0.2)).float()
    edges = ((edges + edges.T + torch.eye(60)) > 0).float()
    degree = edges.sum(1) ** -0.5
    adjacency = degree[:, None] * edges * degree
    mask = torch.rand(60) < 0.5
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    def run() -> None:
        for _ in range(20):
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(x, adjacency)[mask], y[mask]).backward()
            optimizer.step()

    return model, run


class TripletNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Sequential(nn.Linear(10, 32), nn.PReLU(), nn.Linear(32, 8))

    def forward(self, x: Tensor) -> Any:
        return F.normalize(self.embedding(x), dim=1)


@ordinary
def triplets() -> Setup:
    model = TripletNet()
    criterion = nn.TripletMarginLoss(margin=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            x, y = blobs(120)
            x = x + 2 * torch.randn_like(x)
            a, b = x[y == 0][:24], x[y == 1][:12]
            optimizer.zero_grad()
            criterion(model(a[:12]), model(a[12 : 12 + len(b)]), model(b)).backward()
            optimizer.step()

    return model, run


@ordinary
def siamese_with_contrastive_loss() -> Setup:
    model = TripletNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run() -> None:
        for _ in range(20):
            a, la = blobs(32)
            b, lb = blobs(32)
            same = torch.where(la == lb, 1.0, -1.0)
            optimizer.zero_grad()
            F.cosine_embedding_loss(model(a), model(b), same, margin=0.2).backward()
            optimizer.step()

    return model, run


@ordinary
def fine_tuning_with_two_learning_rates() -> Setup:
    body = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    model = nn.Sequential(body, nn.Linear(32, 5))
    fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), data=lambda n: blobs(n, classes=5), steps=60)
    model[1] = nn.Linear(32, 3)
    optimizer = torch.optim.AdamW([
        {"params": model[0].parameters(), "lr": 2e-4}, {"params": model[1].parameters(), "lr": 2e-3}
    ])  # fmt: skip

    def run() -> None:
        fit(model, optimizer)

    return model, run


class Transfer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.backbone(x))


@ordinary
def frozen_backbone_new_head() -> Setup:
    model = Transfer()
    fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), data=lambda n: blobs(n, classes=5), steps=60)
    model.backbone.requires_grad_(False)
    model.head = nn.Linear(32, 3)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=5e-3)

    def run() -> None:
        fit(model, optimizer, steps=20)

    return model, run


@ordinary
def average_of_weights_done_properly() -> Setup:
    model = MLP()
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    both = nn.ModuleDict({"model": model, "ema": averaged})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for x, y in loader(*blobs(320)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            averaged.update_parameters(model)
        averaged.eval()
        with torch.no_grad():
            averaged(blobs(32)[0])

    return both, run


class DQN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        return self.online(x)

    def soft_update(self, tau: float = 0.05) -> None:
        with torch.no_grad():
            for t, p in zip(self.target.parameters(), self.online.parameters(), strict=True):
                t.lerp_(p, tau)


@ordinary
def dqn_with_soft_updates() -> Setup:
    model = DQN()
    optimizer = torch.optim.Adam(model.online.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(25):
            s, a = torch.randn(32, 4), torch.randint(2, (32, 1))
            following = s + 0.3 * (2 * a - 1)
            reward = following[:, 0].tanh()
            with torch.no_grad():
                wanted = reward + 0.5 * model.target(following).max(1).values
            loss = F.smooth_l1_loss(model(s).gather(1, a).squeeze(1), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.soft_update()

    return model, run


@ordinary
def distillation_done_properly() -> Setup:
    teacher = MLP(p=0.1)
    fit(teacher, torch.optim.Adam(teacher.parameters(), lr=3e-3), steps=60)
    teacher.eval().requires_grad_(False)
    student = MLP(hidden=8)
    pair = nn.ModuleDict({"teacher": teacher, "student": student})
    optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(20):
            x, y = blobs(32)
            with torch.no_grad():
                soft = (teacher(x) / 2).log_softmax(-1)
            out = student(x)
            kl = F.kl_div((out / 2).log_softmax(-1), soft, log_target=True, reduction="batchmean") * 4
            loss = 0.7 * kl + 0.3 * F.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return pair, run


class MultiTask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.kind, self.size = nn.Linear(32, 3), nn.Linear(32, 1)
        self.log_sigma = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.shared(x)
        return self.kind(h), self.size(h).squeeze(1)


@ordinary
def two_tasks_with_learned_weights() -> Setup:
    model = MultiTask()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(20):
            x, y = blobs(32)
            kind, size = model(x)
            losses = torch.stack([F.cross_entropy(kind, y), F.mse_loss(size, x[:, :4].mean(1))])
            loss = ((-model.log_sigma).exp() * losses + model.log_sigma).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class PhysicsNet(nn.Module):
    """Learns the solution of y' = -y with y(0) = 1."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, t: Tensor) -> Any:
        return self.net(t)


@ordinary
def physics_informed_network() -> Setup:
    model = PhysicsNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(25):
            t = (2 * torch.rand(32, 1)).requires_grad_()
            y = model(t)
            (slope,) = torch.autograd.grad(y.sum(), t, create_graph=True)
            start = (model(torch.zeros(1, 1)) - 1).square().mean()
            loss = (slope + y).square().mean() + start
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class MoE(nn.Module):
    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.router = nn.Linear(10, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 3)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Any:
        gates = self.router(x).softmax(-1)
        return torch.einsum("be,beo->bo", gates, torch.stack([expert(x) for expert in self.experts], 1))


@ordinary
def dense_mixture_of_experts() -> Setup:
    model = MoE()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    def run() -> None:
        fit(model, optimizer, steps=20)

    return model, run


@ordinary
def multi_label_with_soft_margin() -> Setup:
    model = MLP(8, 32, 4)
    optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3)

    def data(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 8)
        return x, (x[:, :4] + x[:, 4:] > 0.3).float()

    def run() -> None:
        fit(model, optimizer, nn.MultiLabelSoftMarginLoss(), data, 20)

    return model, run
