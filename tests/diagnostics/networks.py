"""Small networks of many kinds, written the way users write them."""

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(
    *sizes: int, activation: Callable[[], nn.Module] = nn.ReLU, norm: Callable[[int], nn.Module] | None = None
) -> nn.Sequential:
    """Linear layers with activations between; the last layer has none."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers.append(nn.Linear(a, b))
        if i < len(sizes) - 2:
            layers += [norm(b)] if norm else []
            layers.append(activation())
    return nn.Sequential(*layers)


def scaled_init(model: nn.Module, gain: float = math.sqrt(2)) -> nn.Module:
    """Initialize every weight matrix with std = gain / sqrt(fan_in), and every bias with zeros."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, std=gain / math.sqrt(fan_in))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def convnet(classes: int = 4, channels: int = 8, bias: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    before = 1
    for i in range(3):
        layers += [nn.Conv2d(before, channels, 3, padding=1, bias=bias), nn.BatchNorm2d(channels), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i < 2 else []
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class ResidualConv(nn.Module):
    def __init__(self, channels: int, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class ResNet(nn.Module):
    def __init__(
        self, depth: int = 3, channels: int = 8, classes: int = 4, norm: Callable[[int], nn.Module] = nn.BatchNorm2d
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.norm = norm(channels)
        self.blocks = nn.Sequential(*(ResidualConv(channels, norm) for _ in range(depth)))
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))
        return y


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = True, scale: float | None = None) -> None:
        super().__init__()
        self.heads, self.causal, self.scale = heads, causal, scale
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        q, k, v = (part(x).view(b, s, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)
        out: Tensor = self.out(y.transpose(1, 2).reshape(b, s, d))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(x)))
        return y


class Block(nn.Module):
    def __init__(self, width: int, heads: int, norm: Callable[[int], nn.Module], post: bool, causal: bool) -> None:
        super().__init__()
        self.attention, self.feed = Attention(width, heads, causal), FeedForward(width)
        self.norm1, self.norm2, self.post = norm(width), norm(width), post

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.feed(x))  # type: ignore[no-any-return]
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A hand-written GPT."""

    def __init__(
        self,
        vocab_size: int = 16,
        width: int = 32,
        depth: int = 4,
        heads: int = 4,
        context: int = 16,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        post: bool = False,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, norm, post, causal) for _ in range(depth))
        self.norm = nn.Identity() if post else norm(width)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(self.norm(x))
        return y


class RNN(nn.Module):
    """A plain recurrent cell, called once per token."""

    def __init__(
        self, vocab_size: int = 16, width: int = 32, activation: Callable[[Tensor], Tensor] = torch.tanh
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.cell = RNNCell(width, activation)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        state = torch.zeros_like(x[:, 0])
        states = []
        for i in range(tokens.shape[1]):
            state = self.cell(x[:, i], state)
            states.append(state)
        y: Tensor = self.head(torch.stack(states, 1))
        return y


class RNNCell(nn.Module):
    def __init__(self, width: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.input_proj, self.state_proj, self.activation = (
            nn.Linear(width, width),
            nn.Linear(width, width, bias=False),
            activation,
        )
        nn.init.orthogonal_(self.state_proj.weight)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return self.activation(self.input_proj(x) + self.state_proj(state))


class LSTMModel(nn.Module):
    def __init__(self, vocab_size: int = 16, width: int = 32, layers: int = 1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.lstm = nn.LSTM(width, width, num_layers=layers, batch_first=True)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.lstm(self.tokens(tokens))[0])
        return y


class StateSpaceBlock(nn.Module):
    """A block similar to Mamba: a gate, a short causal convolution, and a decaying state."""

    def __init__(self, width: int, states: int = 4) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.enter = nn.Linear(width, 2 * width, bias=False)
        self.conv = nn.Conv1d(width, width, 4, groups=width, padding=3)
        self.select = nn.Linear(width, 2 * states + 1, bias=False)
        self.delta = nn.Linear(1, width)
        self.decay = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(width, 1))
        self.skip = nn.Parameter(torch.ones(width))
        self.leave = nn.Linear(width, width, bias=False)
        self.states = states

    def forward(self, x: Tensor) -> Tensor:
        s = x.shape[1]
        y, gate = self.enter(self.norm(x)).chunk(2, -1)
        y = F.silu(self.conv(y.transpose(1, 2))[..., :s].transpose(1, 2))
        write, read, step = self.select(y).split([self.states, self.states, 1], -1)
        step = F.softplus(self.delta(step))
        decay = torch.exp(-step[..., None] * self.decay.exp())
        state, outputs = torch.zeros_like(decay[:, 0]), []
        for i in range(s):
            state = decay[:, i] * state + step[:, i, :, None] * write[:, i, None, :] * y[:, i, :, None]
            outputs.append((state * read[:, i, None, :]).sum(-1))
        mixed = torch.stack(outputs, 1) + self.skip * y
        out: Tensor = x + self.leave(mixed * F.silu(gate))
        return out


class StateSpaceModel(nn.Module):
    def __init__(self, vocab_size: int = 16, width: int = 24, depth: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList(StateSpaceBlock(width) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(self.norm(x))
        return y


class UNet(nn.Module):
    def __init__(self, channels: int = 8, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.down1, self.norm1 = nn.Conv2d(1, channels, 3, padding=1), norm(channels)
        self.down2, self.norm2 = nn.Conv2d(channels, 2 * channels, 3, padding=1, stride=2), norm(2 * channels)
        self.up, self.norm3 = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2), norm(channels)
        self.last = nn.Conv2d(2 * channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.norm1(self.down1(x)))
        b = F.relu(self.norm2(self.down2(a)))
        c = F.relu(self.norm3(self.up(b)))
        y: Tensor = self.last(torch.cat([a, c], 1))
        return y


class Encoder(nn.Module):
    """nn.TransformerEncoder, whose layers start as copies; `reinitialize` draws their weights independently."""

    def __init__(
        self, width: int = 32, depth: int = 3, classes: int = 4, reinitialize: bool = True, norm_first: bool = True
    ) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.tokens, self.head = nn.Embedding(16, width), nn.Linear(width, classes)
        if reinitialize:
            for parameter in self.encoder.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.encoder(self.tokens(tokens)).mean(1))
        return y
