"""Models with zero, identity or identical weights by design, or with parts that get no gradient by design."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Objective, Setup, healthy, run_steps, two_training_steps
from tests.diagnostics.networks import Block, Decoder, Encoder, ResNet, StateSpaceModel, mlp
from tests.diagnostics.tasks import classify, classify_stride, images, points, predict_next, texts


def _one_backward(model: nn.Module, objective: Objective) -> Setup:
    """One forward and backward pass without an optimizer step."""
    return model, lambda: objective().backward()


@healthy((0, 1))
def resnet_zero_init_first_steps(seed: int) -> Setup:
    model: Any = ResNet(depth=4)
    for block in model.blocks:
        nn.init.zeros_(block.norm2.weight)
    return (
        _one_backward(model, classify(model, images)(seed))
        if seed == 0
        else two_training_steps(model, classify(model, images))
    )


class ReZero(Block):
    """Each branch is scaled by a parameter that starts at zero (Bachlechner et al. 2020)."""

    def __init__(self) -> None:
        super().__init__(32, 4, lambda _: nn.Identity(), False, True)
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale * self.attention(x)
        y: Tensor = x + self.scale * self.feed(x)
        return y


@healthy((0, 1))
def rezero_transformer(seed: int) -> Setup:
    model: Any = Decoder(depth=4)
    for i in range(4):
        model.blocks[i] = ReZero()
    return _one_backward(model, predict_next(model)(0)) if seed == 0 else two_training_steps(model, predict_next(model))


@healthy((0, 1), quick=False)
def state_space_model_at_init(seed: int) -> Setup:
    model: Any = StateSpaceModel(depth=3)
    return _one_backward(model, predict_next(model)(seed))


class IdentityInitRNN(nn.Module):
    """Recurrent layers initialized with the identity (Le et al. 2015)."""

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


@healthy((0, 1))
def identity_init_rnn(seed: int) -> Setup:
    model: Any = IdentityInitRNN()
    return _one_backward(model, predict_next(model)(seed))


@healthy((0, 1))
def zero_init_output_layer(seed: int) -> Setup:
    """The output layer has the shape of the others, but a hundredth of their rms for many steps."""
    model: Any = mlp(16, 16, 16, 16, 16, 16, activation=nn.SiLU)
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)

    def batch(number: int) -> Objective:
        inputs, _ = points(number)
        return lambda: F.mse_loss(model(inputs), 0.5 * inputs)

    return two_training_steps(model, batch, after=10 * seed + 2, lr=3e-4)


class QLearning(nn.Module):
    """Action values learned from those of a target network that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = mlp(16, 32, 32, 4), mlp(16, 32, 32, 4)
        self.target.load_state_dict(self.online.state_dict())

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        with torch.no_grad():
            goal = 1 + 0.9 * self.target(after).amax(1)
        return F.smooth_l1_loss(self.online(before).amax(1), goal)


@healthy((0, 1))
def q_learning_with_target_network(seed: int) -> Setup:
    model: Any = QLearning()
    optimizer = torch.optim.Adam(model.online.parameters(), lr=1e-3)

    def objective() -> Tensor:
        loss: Tensor = model(points(0)[0], points(1)[0])
        return loss

    return (model, lambda: run_steps([objective], optimizer)) if seed else _one_backward(model, objective)


class GAN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.makes = mlp(8, 64, 16)
        self.judges = nn.Sequential(norm(nn.Linear(16, 64)), nn.LeakyReLU(0.2), norm(nn.Linear(64, 1)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.judges(x)
        return y


@healthy((0, 1))
def gan_critic_step(seed: int) -> Setup:
    """The critic is trained on detached samples of the generator, and has spectral norm."""
    model: Any = GAN()

    def run() -> None:
        made = model.makes(torch.randn(64, 8)).detach()
        (F.relu(1 - model(points(seed)[0])).mean() + F.relu(1 + model(made)).mean()).backward()

    return model, run


class WaveNet(nn.Module):
    """Dilated convolutions with a residual and a skip output; the last residual output is unused."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(16, 32), nn.Linear(32, 16)
        self.layers = nn.ModuleList(WaveNetLayer(2**i) for i in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        x, total = self.tokens(tokens), torch.zeros(1)
        for layer in self.layers:
            x, part = layer(x)
            total = total + part
        y: Tensor = self.head(F.relu(total))
        return y


class WaveNetLayer(nn.Module):
    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.conv, self.on, self.out = nn.Conv1d(32, 64, 2, dilation=dilation), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        filtered, gate = self.conv(F.pad(x.transpose(1, 2), (self.dilation, 0))).transpose(1, 2).chunk(2, -1)
        y = torch.tanh(filtered) * torch.sigmoid(gate)
        return x + self.on(y), self.out(y)


@healthy((0, 1))
def wavenet_unused_last_residual(seed: int) -> Setup:
    model: Any = WaveNet()
    return two_training_steps(model, predict_next(model, texts), after=40 * seed)


@healthy((0,))
def small_last_batch(seed: int) -> Setup:
    model: Any = mlp(16, 32, 4, norm=nn.BatchNorm1d)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sizes = (64, 64, 5)
    batches = [classify(model, lambda i, n=n: points(i, count=n))(seed) for n in sizes]  # type: ignore[misc]
    return model, lambda: run_steps(batches, optimizer)


class FourierFeatures(nn.Module):
    """Trainable frequencies from N(0, 10) (Tancik et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.angles, self.rest = nn.Linear(2, 64, bias=False), mlp(128, 64, 1)
        nn.init.normal_(self.angles.weight, std=10.0)

    def forward(self, x: Tensor) -> Tensor:
        angles = 2 * math.pi * self.angles(x)
        y: Tensor = self.rest(torch.cat([angles.sin(), angles.cos()], -1))
        return y


@healthy((0, 1))
def fourier_features(seed: int) -> Setup:
    model: Any = FourierFeatures()
    x = torch.rand(64, 2)
    return two_training_steps(model, lambda _: lambda: F.mse_loss(model(x), (5 * x).sin().sum(1, True)))


@healthy((0, 1))
def encoder_layers_start_as_copies_and_are_trained(seed: int) -> Setup:
    """The layers of nn.TransformerEncoder are copies, but each learns from inputs of its own."""
    model: Any = Encoder(reinitialize=False)
    return two_training_steps(model, classify_stride(model))


@healthy((0, 1))
def output_bias_is_the_mean_of_the_targets(seed: int) -> Setup:
    model: Any = mlp(16, 32, 1)
    nn.init.constant_(model[2].bias, 50.0)
    x = points(seed)[0]
    return two_training_steps(model, lambda _: lambda: F.mse_loss(model(x), 50 + x[:, :1]))
