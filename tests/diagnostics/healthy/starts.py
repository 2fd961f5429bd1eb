"""Models whose parts start at zero or alike by design, and parts that get no gradient by design."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Objective, Scene, running, steps, well
from tests.diagnostics.networks import Block, Decoder, ResNet, StateSpaceModel, mlp
from tests.diagnostics.tasks import classify, images, points, predict, texts


def _once(model: nn.Module, objective: Objective) -> Scene:
    """A way forward and back, and no step: as a fresh model is first looked at."""
    return model, lambda: objective().backward()


@well((0, 1))
def resnet_whose_branches_start_with_a_gain_of_zero(seed: int) -> Scene:
    model: Any = ResNet(depth=4)
    for block in model.blocks:
        nn.init.zeros_(block.norm2.weight)
    return _once(model, classify(model, images)(seed)) if seed == 0 else running(model, classify(model, images))


class ReZero(Block):
    """Each branch behind a number that starts at zero (Bachlechner et al. 2020)."""

    def __init__(self) -> None:
        super().__init__(32, 4, lambda _: nn.Identity(), False, True)
        self.share = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.share * self.attention(x)
        y: Tensor = x + self.share * self.feed(x)
        return y


@well((0, 1))
def transformer_behind_numbers_of_zero(seed: int) -> Scene:
    model: Any = Decoder(depth=4)
    for i in range(4):
        model.blocks[i] = ReZero()
    return _once(model, predict(model)(0)) if seed == 0 else running(model, predict(model))


@well((0, 1))
def state_spaces_that_decay_alike_at_the_start(seed: int) -> Scene:
    model: Any = StateSpaceModel(depth=3)
    return _once(model, predict(model)(seed))


class Identities(nn.Module):
    """Recurrent layers that start at the identity (Le et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(16, 32), nn.Linear(32, 16)
        self.layers = nn.RNN(32, 32, num_layers=3, nonlinearity="relu", batch_first=True)
        self.cell = nn.Linear(32, 32, bias=False)
        self.other = nn.Linear(32, 32, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.1)
        for name, parameter in self.named_parameters():
            if "weight_hh" in name or name.startswith(("cell", "other")):
                nn.init.eye_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(F.relu(self.other(F.relu(self.cell(self.layers(self.tokens(tokens))[0])))))
        return y


@well((0, 1))
def layers_that_start_at_the_identity(seed: int) -> Scene:
    model: Any = Identities()
    return _once(model, predict(model)(seed))


@well((0, 1))
def flow_whose_last_layer_starts_at_zero(seed: int) -> Scene:
    """Of the same shape as the others, and a hundredth of their size for many steps."""
    model: Any = mlp(16, 16, 16, 16, 16, 16, activation=nn.SiLU)
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)

    def batch(number: int) -> Objective:
        inputs, _ = points(number)
        return lambda: F.mse_loss(model(inputs), 0.5 * inputs)

    return running(model, batch, trained=10 * seed + 2, lr=3e-4)


class Values(nn.Module):
    """Values of actions, learnt from those of an older copy of the network that no gradient goes to."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = mlp(16, 32, 32, 4), mlp(16, 32, 32, 4)
        self.target.load_state_dict(self.online.state_dict())

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        with torch.no_grad():
            goal = 1 + 0.9 * self.target(after).amax(1)
        return F.smooth_l1_loss(self.online(before).amax(1), goal)


@well((0, 1))
def values_and_their_targets(seed: int) -> Scene:
    model: Any = Values()
    optimiser = torch.optim.Adam(model.online.parameters(), lr=1e-3)

    def objective() -> Tensor:
        loss: Tensor = model(points(0)[0], points(1)[0])
        return loss

    return (model, lambda: steps([objective], optimiser)) if seed else _once(model, objective)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.makes = mlp(8, 64, 16)
        self.judges = nn.Sequential(norm(nn.Linear(16, 64)), nn.LeakyReLU(0.2), norm(nn.Linear(64, 1)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.judges(x)
        return y


@well((0, 1))
def critic_learns_while_the_generator_only_makes(seed: int) -> Scene:
    """And its weights are divided by their largest singular value, which no norm layer does."""
    model: Any = Pair()

    def run() -> None:
        made = model.makes(torch.randn(64, 8)).detach()
        (F.relu(1 - model(points(seed)[0])).mean() + F.relu(1 + model(made)).mean()).backward()

    return model, run


class Waves(nn.Module):
    """Dilated convolutions that add to a stream and to a sum; what the last adds to the stream nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(16, 32), nn.Linear(32, 16)
        self.layers = nn.ModuleList(Wave(2**i) for i in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        x, total = self.tokens(tokens), torch.zeros(1)
        for layer in self.layers:
            x, part = layer(x)
            total = total + part
        y: Tensor = self.head(F.relu(total))
        return y


class Wave(nn.Module):
    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.conv, self.on, self.out = nn.Conv1d(32, 64, 2, dilation=reach), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        filtered, gate = self.conv(F.pad(x.transpose(1, 2), (self.reach, 0))).transpose(1, 2).chunk(2, -1)
        y = torch.tanh(filtered) * torch.sigmoid(gate)
        return x + self.on(y), self.out(y)


@well((0, 1))
def waves_whose_last_addition_nobody_reads(seed: int) -> Scene:
    model: Any = Waves()
    return running(model, predict(model, texts), trained=40 * seed)


@well((0,))
def batches_of_which_the_last_is_small(seed: int) -> Scene:
    model: Any = mlp(16, 32, 4, norm=nn.BatchNorm1d)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    sizes = (64, 64, 5)
    batches = [classify(model, lambda i, n=n: points(i, count=n))(seed) for n in sizes]  # type: ignore[misc]
    return model, lambda: steps(batches, optimiser)
