"""Graphs that gradients cannot pass through, and parameters that nothing trains."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.register import planted
from tests.diagnostics.corpus.tuning._data import bars, blobs, counting, digits, line, loader, two_classes, waves


class FeatureExtractor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten())
        self.classifier = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            features = self.cnn(x)
        return self.classifier(features)


@planted("graph is cut", "cnn", "cnn.0", "")
def feature_extractor_under_no_grad() -> Setup:
    """The convolutions run under torch.no_grad(), left over from a version with a pretrained backbone (forum)."""
    model = FeatureExtractor()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for x, y in loader(*bars(192)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


class TwoStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stage1 = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 16))
        self.stage2 = nn.Sequential(nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Any:
        hidden = self.stage1(x)
        hidden = torch.tensor(hidden.detach().numpy())
        return self.stage2(hidden)


@planted("graph is cut", "stage1", "stage1.2", "stage1.0", "stage2", "")
def numpy_between_two_stages() -> Setup:
    """The hidden layer goes through NumPy and torch.tensor(), which forgets the graph (forum)."""
    model = TwoStage()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for x, y in loader(*blobs(192)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

    return model, run


@planted("loss does not depend on the model", "")
def loss_from_argmax_that_requires_grad() -> Setup:
    """Error rate as loss; after "does not require grad" somebody set loss.requires_grad = True (forum)."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def run() -> None:
        for x, y in loader(*two_classes(160)):
            predicted = model(x).argmax(dim=1)
            loss = F.l1_loss(predicted.float(), y)
            loss.requires_grad = True
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


@planted("loss does not depend on the model", "")
def loss_wrapped_in_a_new_tensor() -> Setup:
    """torch.tensor([...], requires_grad=True) of the single losses is a new leaf (forum)."""
    model = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def run() -> None:
        for _ in range(10):
            losses = []
            for x, y in zip(*line(8), strict=True):
                losses.append(F.mse_loss(model(x)[0], y).item())
            loss = torch.tensor(losses, requires_grad=True).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class Seq2Seq(nn.Module):
    def __init__(self, vocab: int = 12, dim: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.fc_out = nn.Linear(dim, vocab)

    def forward(self, src: Tensor, trg: Tensor) -> Any:
        _, hidden = self.encoder(self.embedding(src))
        out, _ = self.decoder(self.embedding(trg), hidden.data)
        return self.fc_out(out)


@planted("graph is cut", "encoder", "")
def encoder_state_taken_by_data() -> Setup:
    """The decoder starts from hidden.data, so the encoder gets no gradient (forum: repackaged hidden state)."""
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(12):
            ids = counting(16, 14)
            src, trg = ids[:, :7], ids[:, 7:]
            logits = model(src, trg[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), trg[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return model, run


class FusionNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image_branch = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
        self.text_branch = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
        self.fuse = nn.Linear(32, 3)

    def forward(self, image: Tensor, words: Tensor) -> Any:
        a = self.image_branch(image)
        _b = self.text_branch(words)
        return self.fuse(torch.cat([a, a], dim=1))


@planted("graph is cut", "text_branch", "text_branch.0", "text_branch.1", "")
def one_branch_concatenated_twice() -> Setup:
    """torch.cat([a, a]) where [a, b] was meant: the second branch is computed and not used (own variation)."""
    model = FusionNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(12):
            words, y = blobs(24)
            optimizer.zero_grad()
            F.cross_entropy(model(digits(24), words), y).backward()
            optimizer.step()

    return model, run


class PlainList(nn.Module):
    def __init__(self, dim: int = 24, depth: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(10, dim)
        self.hidden = [nn.Linear(dim, dim) for _ in range(depth)]
        self.last = nn.Linear(dim, 3)

    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.first(x))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.last(x)


@planted("parameters are not registered", "")
def layers_in_a_python_list() -> Setup:
    """Hidden layers are kept in a list rather than nn.ModuleList (forum; TrainCheck)."""
    model = PlainList()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        for x, y in loader(*blobs(240)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


class PretrainedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block1 = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
        self.block2 = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.fc = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.block2(self.block1(x)))


@planted("parameters are frozen", "", "fc")
def head_frozen_together_with_the_backbone() -> Setup:
    """Everything is frozen after the head was replaced, and only block2 unfrozen: the head keeps chance (forum)."""
    model = PretrainedNet()
    model.fc = nn.Linear(32, 3)
    for param in model.parameters():
        param.requires_grad = False
    for param in model.block2.parameters():
        param.requires_grad = True
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3)

    def run() -> None:
        for x, y in loader(*blobs(240)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


class DeepHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_in = nn.Conv1d(1, 12, 5, padding=2)
        self.conv_mid = nn.Conv1d(12, 12, 5, padding=2)
        self.refine = nn.Sequential(nn.Conv1d(12, 12, 3, padding=1), nn.ReLU())
        self.regress = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Any:
        h = F.relu(self.conv_in(x.transpose(1, 2)))
        h = F.relu(self.conv_mid(h))
        _refined = self.refine(h)
        return self.regress(h.mean(-1)).squeeze(-1)


@planted("graph is cut", "refine", "refine.0", "refine.1", "")
def output_of_the_layer_before() -> Setup:
    """The head gets `h` instead of the refined features: a block is computed in vain (own variation)."""
    model = DeepHead()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = waves(160)

    def run() -> None:
        for xb, yb in loader(x, y):
            optimizer.zero_grad()
            F.smooth_l1_loss(model(xb), yb).backward()
            optimizer.step()

    return model, run


class VAE(nn.Module):
    def __init__(self, latent: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.fc_mu, self.fc_logvar = nn.Linear(32, latent), nn.Linear(32, latent)
        self.decode = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(x)
        mu, logvar = self.fc_mu(h), self.fc_logvar(h)
        z = torch.distributions.Normal(mu, (0.5 * logvar).exp()).sample()
        return self.decode(z), mu, logvar


@planted("graph is cut", "body", "body.1", "fc_mu", "fc_logvar", "", hard=True)
def vae_samples_without_reparametrization() -> Setup:
    """`.sample()` instead of `.rsample()`: only the KL term reaches the encoder, which hides the cut (forum)."""
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for (x,) in loader(digits(192)):
            out, mu, logvar = model(x)
            reconstruction = F.binary_cross_entropy_with_logits(out, x.flatten(1), reduction="sum") / len(x)
            kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
            optimizer.zero_grad()
            (reconstruction + kl).backward()
            optimizer.step()

    return model, run


class PolicyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(6, 24), nn.Tanh())
        self.actor, self.critic = nn.Linear(24, 3), nn.Linear(24, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.shared(state)
        return self.actor(h), self.critic(h)


@planted("graph is cut", "actor", "", hard=True)
def log_probabilities_of_old_rollouts() -> Setup:
    """The log-probabilities of the rollout were turned into NumPy, so only the critic learns (forum: actor-critic)."""
    model = PolicyNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(12):
            state = torch.randn(32, 6)
            logits, value = model(state)
            policy = torch.distributions.Categorical(logits=logits)
            action = policy.sample()
            rewards = (action == state[:, :3].argmax(1)).float()
            log_probs = np.array([float(p) for p in policy.log_prob(action)], dtype=np.float32)
            advantage = rewards - value.squeeze(1).detach()
            actor_loss = -(torch.from_numpy(log_probs) * advantage).mean()
            critic_loss = F.mse_loss(value.squeeze(1), rewards)
            optimizer.zero_grad()
            (actor_loss + critic_loss).backward()
            optimizer.step()

    return model, run
