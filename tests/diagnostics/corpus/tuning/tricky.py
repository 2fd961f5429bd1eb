"""Healthy setups that look like faults."""

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.utils.checkpoint import checkpoint

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.register import tricky
from tests.diagnostics.corpus.tuning._data import bars, blobs, counting, digits, line, loader, two_classes


class ArcFace(nn.Module):
    def __init__(self, dim: int = 16, classes: int = 3, s: float = 30.0, m: float = 0.5) -> None:
        super().__init__()
        self.embedding = nn.Sequential(nn.Linear(10, 64), nn.PReLU(), nn.Linear(64, dim), nn.BatchNorm1d(dim))
        self.weight = nn.Parameter(torch.randn(classes, dim))
        self.s, self.m = s, m

    def forward(self, x: Tensor, label: Tensor) -> Any:
        cosine = F.linear(F.normalize(self.embedding(x)), F.normalize(self.weight)).clamp(-1 + 1e-6, 1 - 1e-6)
        with_margin = torch.cos(torch.acos(cosine) + self.m)
        return self.s * torch.where(F.one_hot(label, cosine.shape[1]).bool(), with_margin, cosine)


@tricky
def arcface_with_scale_30() -> Setup:
    """Logits have a scale of 30, and the first loss is far above chance: that is how ArcFace works."""
    model = ArcFace()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)

    def run() -> None:
        for x, y in loader(*blobs(320)):
            loss = F.cross_entropy(model(x, y), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class FourierRegressor(nn.Module):
    """A NeRF-like network: frequencies up to 2^5 pi."""

    def __init__(self, bands: int = 6) -> None:
        super().__init__()
        self.frequencies: Tensor
        self.register_buffer("frequencies", 2.0 ** torch.arange(bands) * math.pi)
        self.mlp = nn.Sequential(nn.Linear(2 * bands, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, t: Tensor) -> Any:
        angle = t * self.frequencies
        return self.mlp(torch.cat([angle.sin(), angle.cos()], -1))


@tricky
def fourier_features() -> Setup:
    """High frequencies of one coordinate look like noise, but are the way to fit a fast signal."""
    model = FourierRegressor()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(30):
            t = torch.rand(64, 1)
            loss = F.mse_loss(model(t), (12 * t).sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


@tricky
def eight_plain_relu_layers() -> Setup:
    """No residuals and no norms, but He initialization: it trains."""
    sizes = [10, *[48] * 8]
    model = nn.Sequential()
    for i in range(8):
        layer = nn.Linear(sizes[i], sizes[i + 1])
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
        model.extend([layer, nn.ReLU()])
    model.append(nn.Linear(48, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for x, y in loader(*blobs(320)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


class PolicyNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.affine1, self.affine2 = nn.Linear(4, 32), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Any:
        return self.affine2(F.relu(self.affine1(x)))


@tricky
def reinforce_with_negative_loss() -> Setup:
    """The loss of REINFORCE with a baseline is no distance: it may be negative and need not fall."""
    policy = PolicyNetwork()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)

    def run() -> None:
        for _ in range(25):
            state = torch.randn(64, 4)
            distribution = torch.distributions.Categorical(logits=policy(state))
            action = distribution.sample()
            reward = (action == (state[:, 0] > 0).long()).float()
            advantage = (reward - reward.mean()) / (reward.std() + 1e-8)
            loss = -(distribution.log_prob(action) * advantage).mean() - 0.01 * distribution.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return policy, run


class SimSiam(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.BatchNorm1d(16)
        )
        self.predictor = nn.Sequential(nn.Linear(16, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 16))

    def forward(self, a: Tensor, b: Tensor) -> Any:
        za, zb = self.encoder(a), self.encoder(b)
        pa, pb = self.predictor(za), self.predictor(zb)
        loss = F.cosine_similarity(pa, zb.detach()).mean() + F.cosine_similarity(pb, za.detach()).mean()
        return -loss / 2


@tricky
def simsiam_stops_gradients() -> Setup:
    """Targets are detached on purpose, and the loss goes to -1."""
    model = SimSiam()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def run() -> None:
        for x, _ in loader(*blobs(480), batch_size=32):
            loss = model(x + 0.2 * torch.randn_like(x), x + 0.2 * torch.randn_like(x))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class VQVAE(nn.Module):
    def __init__(self, codes: int = 16, dim: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8 * dim), nn.Unflatten(1, (8, dim))
        )
        self.codebook = nn.Embedding(codes, dim)
        self.decoder = nn.Sequential(nn.Flatten(), nn.Linear(8 * dim, 32), nn.ReLU(), nn.Linear(32, 64))
        nn.init.uniform_(self.codebook.weight, -0.3, 0.3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        q = self.codebook(torch.cdist(z.flatten(0, 1), self.codebook.weight).argmin(1)).view_as(z)
        extra = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return self.decoder(z + (q - z).detach()), extra


@tricky
def vector_quantization_straight_through() -> Setup:
    """argmin and detach cut the graph, and the straight-through estimator goes around them."""
    model = VQVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for (x,) in loader(digits(480)):
            out, extra = model(x)
            optimizer.zero_grad()
            (F.mse_loss(out, x.flatten(1)) + extra).backward()
            optimizer.step()

    return model, run


class BertLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.pos = nn.Embedding(12, 32), nn.Embedding(12, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.tags = nn.Linear(32, 12)

    def forward(self, ids: Tensor) -> Any:
        return self.tags(self.encoder(self.emb(ids) + self.pos(torch.arange(ids.shape[1]))))


@tricky
def tagger_sees_both_sides() -> Setup:
    """One label per token, and attention without a mask: right for tagging, where labels are no later tokens."""
    model = BertLike()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)

    def run() -> None:
        for _ in range(15):
            ids = torch.randint(12, (16, 12))
            labels = (ids * 5 + 3) % 12
            loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return model, run


class DeepSets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, 2)

    def forward(self, points: Tensor) -> Any:
        return self.head(self.encoder(self.embed(points)).mean(1))


@tricky
def set_transformer_without_positions() -> Setup:
    """No positions: sets have no order."""
    model = DeepSets()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            y = torch.randint(2, (32,))
            points = torch.randn(32, 8, 3) * (1.0 + 1.5 * y[:, None, None])
            optimizer.zero_grad()
            F.cross_entropy(model(points), y).backward()
            optimizer.step()

    return model, run


class Transposed(nn.Module):
    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.other = [other]
        self.bias = nn.Parameter(torch.zeros(other.in_features))

    def forward(self, x: Tensor) -> Any:
        return F.linear(x, self.other[0].weight.t(), self.bias)


class TiedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode1, self.encode2 = nn.Linear(64, 32), nn.Linear(32, 12)
        self.decode2, self.decode1 = Transposed(self.encode2), Transposed(self.encode1)

    def forward(self, x: Tensor) -> Any:
        z = F.relu(self.encode2(F.relu(self.encode1(x.flatten(1)))))
        return self.decode1(F.relu(self.decode2(z)))


@tricky
def tied_autoencoder() -> Setup:
    """The decoder uses the transposed weights of the encoder, and has only biases of its own."""
    model = TiedAutoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for (x,) in loader(digits(480)):
            optimizer.zero_grad()
            F.mse_loss(model(x), x.flatten(1)).backward()
            optimizer.step()

    return model, run


@tricky
def pruned_weights() -> Setup:
    """70 % of the weights are zero, by torch.nn.utils.prune, while fine-tuning goes on."""
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    for layer in (model[0], model[2]):
        prune.l1_unstructured(layer, "weight", amount=0.7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run() -> None:
        for x, y in loader(*blobs(320)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


class ZeroBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor) -> Any:
        return x + self.down(F.gelu(self.up(self.norm(x))))


@tricky
def residual_branches_start_at_zero() -> Setup:
    """The last layer of each branch is zero, so the network starts as the identity (Fixup, DiT)."""
    model = nn.Sequential(nn.Linear(10, 32), *(ZeroBlock(32) for _ in range(4)), nn.LayerNorm(32), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        for x, y in loader(*blobs(320)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


class LoRA(nn.Module):
    def __init__(self, outputs: int, inputs: int, rank: int = 2) -> None:
        super().__init__()
        self.lora_a = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.lora_b = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, weight: Tensor) -> Any:
        return weight + 2 * self.lora_b @ self.lora_a


@tricky
def low_rank_adapters() -> Setup:
    """Everything is frozen but low-rank factors, half of which start at zero, and the head."""
    model: Any = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for x, y in loader(*blobs(320)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y % 2).backward()
        optimizer.step()
    model.requires_grad_(False)
    for i in (0, 2):
        parametrize.register_parametrization(model[i], "weight", LoRA(*model[i].weight.shape))
        model[i].parametrizations.weight.original.requires_grad_(False)
    model[4] = nn.Linear(32, 3)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)

    def run() -> None:
        for x, y in loader(*blobs(480)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


class Uncertain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 48), nn.Linear(48, 2)

    def forward(self, x: Tensor) -> Any:
        return self.fc2(F.dropout(F.relu(self.fc1(x)), p=0.3, training=self.training))


@tricky
def monte_carlo_dropout() -> Setup:
    """Prediction repeats the forward pass in train mode under no_grad, to see how uncertain it is."""
    model = Uncertain()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def run() -> None:
        for _ in range(2):
            for x, y in loader(*two_classes(160)):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y.long()).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                model(two_classes(64)[0])
            model.train()
        x, _ = two_classes(16)
        with torch.no_grad():
            torch.stack([model(x).softmax(-1) for _ in range(8)]).std(0)

    return model, run


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(10, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(3))
        self.out = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.inp(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.out(x)


@tricky
def gradient_checkpointing() -> Setup:
    """Blocks run twice per step, the second time in the backward pass."""
    model = Checkpointed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        for x, y in loader(*blobs(240)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


@tricky
def overfitting_one_batch_on_purpose() -> Setup:
    """A sanity check before training: 8 images, one batch, until the loss is near zero."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    x, y = bars(8)

    def run() -> None:
        for _ in range(25):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


class FrozenNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.fc = nn.Linear(256, 4)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.features(x))

    def freeze_norms(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval().requires_grad_(False)


@tricky
def frozen_batch_norm() -> Setup:
    """While fine-tuning with small batches, BatchNorm keeps statistics and parameters from before, in eval mode."""
    model = FrozenNorms()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(40):
        x, y = bars(24)
        optimizer.zero_grad()
        F.cross_entropy(model(0.5 * x), y // 2).backward()
        optimizer.step()
    model.fc = nn.Linear(256, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        model.train()
        model.freeze_norms()
        for x, y in loader(*bars(120), batch_size=6):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


@tricky
def wasserstein_gan_with_five_critic_steps() -> Setup:
    """The generator steps in every fifth iteration only, and losses of critic and generator may be negative."""
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    model = nn.ModuleDict({"generator": generator, "critic": critic})
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))

    def run() -> None:
        for step in range(25):
            real = torch.randn(32, 2) * 0.3 + torch.tensor([1.0, -1.0])
            fake = generator(torch.randn(32, 4)).detach()
            mixed = torch.lerp(real, fake, torch.rand(32, 1)).requires_grad_()
            (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
            penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
            opt_c.zero_grad()
            (critic(fake).mean() - critic(real).mean() + 10 * penalty).backward()
            opt_c.step()
            if step % 5 == 4:
                opt_g.zero_grad()
                (-critic(generator(torch.randn(32, 4))).mean()).backward()
                opt_g.step()

    return model, run


class PrefixLM(nn.Module):
    def __init__(self, prefix: int = 4) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(12, 32), nn.Embedding(16, 32)
        self.ln, self.attn = nn.LayerNorm(32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.out = nn.Linear(32, 12)
        self.prefix = prefix

    def forward(self, ids: Tensor) -> Any:
        t = ids.shape[1]
        mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        mask[:, : self.prefix] = False
        x = self.wte(ids) + self.wpe(torch.arange(t))
        y = self.ln(x)
        x = x + self.attn(y, y, y, attn_mask=mask)[0]
        return self.out(x + self.mlp(x))


@tricky
def prefix_language_model() -> Setup:
    """The first four tokens see each other both ways; only what follows them is predicted."""
    model = PrefixLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(15):
            ids = counting(24)
            logits = model(ids[:, :-1])[:, 3:]
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 4:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


@tricky
def sparse_one_hot_inputs() -> Setup:
    """Bags of words over 60 words, most of which no text of a batch has, and two of which occur nowhere."""
    model = nn.Sequential(nn.Linear(60, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    y = torch.randint(2, (320,))
    words = torch.randint(29, (320, 6)) + 29 * (y[:, None] * (torch.rand(320, 6) < 0.7)).long()
    bags = F.one_hot(words, 60).sum(1).float()

    def run() -> None:
        for x, label in loader(bags, y):
            optimizer.zero_grad()
            F.cross_entropy(model(x), label).backward()
            optimizer.step()

    return model, run


@tricky
def lookahead() -> Setup:
    """Every five steps, weights jump back half the way to slow weights, outside of any optimizer."""
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    slow = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def run() -> None:
        for step in range(30):
            x, y = line(32)
            optimizer.zero_grad()
            F.mse_loss(model(x).squeeze(1), y).backward()
            optimizer.step()
            if step % 5 == 4:
                for name, p in model.state_dict().items():
                    slow[name].lerp_(p, 0.5)
                model.load_state_dict(slow)

    return model, run


@tricky
def sum_reduction_with_a_rate_for_it() -> Setup:
    """The loss is a sum over 32 samples, and the learning rate is 32 times smaller."""
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    criterion = nn.MSELoss(reduction="sum")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 32)

    def run() -> None:
        for x, y in loader(*line(640), batch_size=32):
            optimizer.zero_grad()
            criterion(model(x).squeeze(1), y).backward()
            optimizer.step()

    return model, run
