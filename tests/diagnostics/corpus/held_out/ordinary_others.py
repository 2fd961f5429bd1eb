"""Everyday training on tables, graphs, pairs and games."""

import copy
import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.held_out._shared import blobs, dense, houses, waves
from tests.diagnostics.corpus.register import ordinary


@ordinary
def mlp_in_epochs() -> Setup:
    model = dense(10, 32, 32, 3)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run() -> None:
        x_valid, y_valid = blobs(64)
        for _ in range(3):
            model.train()
            for x, y in DataLoader(TensorDataset(*blobs(192)), batch_size=32, shuffle=True):
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
            model.eval()
            with torch.inference_mode():
                criterion(model(x_valid), y_valid)

    return model, run


class HousePrices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block1 = nn.Sequential(nn.Linear(6, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1))
        self.block2 = nn.Sequential(nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1))
        self.regressor = nn.Linear(48, 1)

    def forward(self, x: Any) -> Any:
        return self.regressor(self.block2(self.block1(x))).squeeze(-1)


@ordinary
def prices_standardized() -> Setup:
    """Targets of hundreds of thousands and columns of all scales, both standardized with the training statistics."""
    model = HousePrices()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        z, price = houses(192)
        x, y = z * torch.tensor([40.0, 2.0, 900.0, 1.0, 0.1, 5e4]) + 1000.0, 90_000 * price + 350_000
        x = (x - x.mean(0)) / x.std(0)
        y = (y - y.mean()) / y.std()
        loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
        model.train()
        for _ in range(4):
            for a, b in loader:
                opt.zero_grad()
                loss = F.smooth_l1_loss(model(a), b)
                loss.backward()
                opt.step()

    return model, run


@ordinary
def sine_regression_with_lbfgs() -> Setup:
    """LBFGS with a closure, on the whole data set."""
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    x, y = waves(96)

    def closure() -> Any:
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    def run() -> None:
        for _ in range(6):
            opt.step(closure)

    return model, run


class Churn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.region = nn.Embedding(5, 4)
        self.plan = nn.Embedding(3, 2)
        self.norm = nn.BatchNorm1d(6)
        self.layers = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: Any, region: Any, plan: Any) -> Any:
        return self.layers(torch.cat([self.norm(x), self.region(region), self.plan(plan)], 1)).squeeze(1)


@ordinary
def imbalanced_binary_labels_with_pos_weight() -> Setup:
    model = Churn()
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0))
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)

    def run() -> None:
        for _ in range(20):
            x, score = houses(64)
            region, plan = torch.randint(5, (64,)), torch.randint(3, (64,))
            y = (score + 0.5 * (region == 2) > 0.8).float()
            loss = criterion(model(x, region, plan), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class GraphConv(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.linear = nn.Linear(a, b)

    def forward(self, x: Any, adjacency: Any) -> Any:
        return adjacency @ self.linear(x)


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = GraphConv(8, 16)
        self.conv2 = GraphConv(16, 3)

    def forward(self, x: Any, adjacency: Any) -> Any:
        x = F.relu(self.conv1(x, adjacency))
        x = F.dropout(x, 0.3, training=self.training)
        return self.conv2(x, adjacency)


@ordinary
def graph_network_on_one_graph() -> Setup:
    """Node classification: each step sees the whole graph, and labels of the training nodes alone."""
    model = GCN()
    opt = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
    labels = torch.randint(3, (60,))
    x = F.one_hot(labels, 8) + 0.8 * torch.randn(60, 8)
    edges = ((labels[:, None] == labels) & (torch.rand(60, 60) < 0.2)) | (torch.rand(60, 60) < 0.02)
    adjacency = (edges | edges.T).float() + torch.eye(60)
    scale = adjacency.sum(1).rsqrt()
    adjacency = scale[:, None] * adjacency * scale
    train = torch.rand(60) < 0.5

    def run() -> None:
        for _ in range(25):
            model.train()
            opt.zero_grad()
            loss = F.cross_entropy(model(x, adjacency)[train], labels[train])
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            (model(x, adjacency).argmax(1) == labels)[~train].float().mean()

    return model, run


class QNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = dense(4, 32, 32, 2)
        self.target = copy.deepcopy(self.online).requires_grad_(False)


@ordinary
def double_dqn_with_soft_updates() -> Setup:
    nets = QNetwork()
    opt = torch.optim.Adam(nets.online.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(30):
            s = torch.randn(64, 4)
            a = torch.randint(2, (64, 1))
            r = s[:, :1] * (2 * a - 1)
            s2 = s + 0.3 * torch.randn(64, 4)
            with torch.no_grad():
                best = nets.online(s2).argmax(1, keepdim=True)
                goal = r + 0.5 * nets.target(s2).gather(1, best)
            loss = F.smooth_l1_loss(nets.online(s).gather(1, a), goal)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(nets.online.parameters(), 10.0)
            opt.step()
            with torch.no_grad():
                for t, p in zip(nets.target.parameters(), nets.online.parameters(), strict=True):
                    t.lerp_(p, 0.05)

    return nets, run


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, s: Any) -> Any:
        return torch.distributions.Categorical(logits=self.actor(s)), self.critic(s).squeeze(1)


@ordinary
def ppo_with_several_epochs_per_rollout() -> Setup:
    model = ActorCritic()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(5):
            s = torch.randn(96, 4)
            with torch.no_grad():
                policy, value = model(s)
                action = policy.sample()
                old = policy.log_prob(action)
            reward = s[:, 0] * (2 * action - 1)
            advantage = reward - value
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            for _ in range(4):
                policy, value = model(s)
                ratio = (policy.log_prob(action) - old).exp()
                surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                loss = -surrogate.mean() + 0.5 * F.mse_loss(value, reward) - 0.01 * policy.entropy().mean()
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                opt.step()

    return model, run


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(40, 8)
        self.items = nn.Embedding(60, 8)
        self.user_bias = nn.Embedding(40, 1)
        self.item_bias = nn.Embedding(60, 1)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)
        for bias in (self.user_bias, self.item_bias):
            nn.init.zeros_(bias.weight)

    def forward(self, u: Any, i: Any) -> Any:
        return (self.users(u) * self.items(i)).sum(1) + self.user_bias(u).squeeze(1) + self.item_bias(i).squeeze(1)


@ordinary
def matrix_factorization() -> Setup:
    model = TwoTowers()
    opt = torch.optim.Adam(model.parameters(), lr=0.03)
    true_users, true_items = torch.randn(40, 3), torch.randn(60, 3)

    def run() -> None:
        for _ in range(25):
            u, i = torch.randint(40, (256,)), torch.randint(60, (256,))
            rating = (true_users[u] * true_items[i]).sum(1) / 3**0.5
            loss = F.mse_loss(model(u, i), rating)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class SiameseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 12))

    def forward(self, a: Any, b: Any) -> Any:
        return F.pairwise_distance(self.trunk(a), self.trunk(b))


@ordinary
def siamese_with_contrastive_loss() -> Setup:
    model = SiameseNet()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(25):
            a, la = blobs(64)
            b, lb = blobs(64)
            same = (la == lb).float()
            d = model(a, b)
            loss = (same * d.square() + (1 - same) * F.relu(2 - d).square()).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@ordinary
def triplet_margin() -> Setup:
    model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 12))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.TripletMarginLoss(margin=2.0)
    centers = torch.randn(6, 10)

    def run() -> None:
        for _ in range(25):
            label = torch.randint(6, (48,))
            other = (label + torch.randint(1, 6, (48,))) % 6
            anchor, positive, negative = (centers[k] + 0.7 * torch.randn(48, 10) for k in (label, label, other))
            loss = criterion(model(anchor), model(positive), model(negative))
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class Mixture(nn.Module):
    """A mixture of experts with a soft gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(10, 4)
        self.experts = nn.ModuleList(dense(10, 24, 3) for _ in range(4))

    def forward(self, x: Any) -> Any:
        weights = self.gate(x).softmax(1)
        return torch.einsum("be,ebc->bc", weights, torch.stack([expert(x) for expert in self.experts]))


@ordinary
def soft_mixture_of_experts() -> Setup:
    model = Mixture()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(20):
            x, y = blobs()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class MultiTask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(6, 48), nn.GELU(), nn.LayerNorm(48))
        self.price = nn.Linear(48, 1)
        self.kind = nn.Linear(48, 2)
        self.log_variance = nn.Parameter(torch.zeros(2))

    def forward(self, x: Any) -> Any:
        h = self.shared(x)
        return self.price(h).squeeze(1), self.kind(h)


@ordinary
def two_tasks_with_learned_weights() -> Setup:
    model = MultiTask()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(25):
            x, y = houses()
            price, kind = model(x)
            losses = torch.stack([F.mse_loss(price, y), F.cross_entropy(kind, (x[:, 5] > 0).long())])
            loss = (losses * torch.exp(-model.log_variance) + model.log_variance).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@ordinary
def distillation_from_a_frozen_teacher() -> Setup:
    pair = nn.ModuleDict({"teacher": dense(10, 64, 64, 3), "student": dense(10, 16, 3)})
    teacher, student = pair["teacher"], pair["student"]
    pretraining = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    for _ in range(40):
        x, y = blobs()
        pretraining.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        pretraining.step()
    teacher.requires_grad_(False)
    opt = torch.optim.Adam(student.parameters(), lr=5e-3)

    def run() -> None:
        student.train()
        teacher.eval()
        for _ in range(20):
            x, y = blobs()
            with torch.no_grad():
                soft = (teacher(x) / 3).log_softmax(1)
            logits = student(x)
            distilled = F.kl_div((logits / 3).log_softmax(1), soft, reduction="batchmean", log_target=True)
            loss = 0.7 * 9 * distilled + 0.3 * F.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return pair, run


@ordinary
def heteroscedastic_regression() -> Setup:
    """Predicts a mean and a variance with nn.GaussianNLLLoss."""

    class MeanVariance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
            self.mean = nn.Linear(48, 1)
            self.variance = nn.Linear(48, 1)

        def forward(self, x: Any) -> Any:
            h = self.hidden(x)
            return self.mean(h), F.softplus(self.variance(h)) + 1e-4

    model = MeanVariance()
    criterion = nn.GaussianNLLLoss()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(25):
            x, y = waves()
            mean, variance = model(x)
            loss = criterion(mean, y, variance)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@ordinary
def spectral_norm_critic() -> Setup:
    """A classifier whose layers are parametrized by spectral_norm, trained with a hinge loss."""
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(10, 48)),
        nn.LeakyReLU(0.1),
        nn.utils.parametrizations.spectral_norm(nn.Linear(48, 48)),
        nn.LeakyReLU(0.1),
        nn.Linear(48, 1),
    )
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(25):
            x, labels = blobs()
            sign = 2.0 * (labels == 1) - 1
            loss = F.relu(1 - sign * model(x).squeeze(1)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@ordinary
def step_by_hand_with_functional_call() -> Setup:
    """Plain gradient descent on a dictionary of parameters, written back to the model."""
    model = nn.Sequential(nn.Linear(10, 32), nn.Softplus(), nn.Linear(32, 3))

    def run() -> None:
        for _ in range(25):
            x, y = blobs()
            parameters = dict(model.named_parameters())
            loss = F.cross_entropy(functional_call(model, parameters, (x,)), y)
            gradients = torch.autograd.grad(loss, list(parameters.values()))
            with torch.no_grad():
                for parameter, gradient in zip(parameters.values(), gradients, strict=True):
                    parameter.sub_(0.2 * gradient)

    return model, run


@ordinary
def quantile_regression_by_hand() -> Setup:
    """A hand-written pinball loss for three quantiles."""
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3))
    opt = torch.optim.NAdam(model.parameters(), lr=3e-3)
    quantiles = torch.tensor([0.1, 0.5, 0.9])

    def run() -> None:
        for _ in range(25):
            x, y = houses()
            error = y[:, None] - model(x)
            loss = torch.maximum(quantiles * error, (quantiles - 1) * error).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class DeepSelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = [10, 40, 40, 40, 40]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.top = nn.Linear(40, 3)
        for layer in self.hidden:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, x: Any) -> Any:
        for layer in self.hidden:
            x = F.alpha_dropout(F.selu(layer(x)), 0.05, self.training)
        return self.top(x)


@ordinary
def self_normalizing_network_with_exponential_average() -> Setup:
    model = DeepSelu()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)

    def run() -> None:
        for _ in range(20):
            x, y = blobs()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            average.update_parameters(model)
        average.eval()
        with torch.no_grad():
            average(blobs()[0])

    return model, run
