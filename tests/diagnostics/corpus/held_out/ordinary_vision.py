"""Everyday training of image models, autoencoders and generative models."""

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.held_out._shared import GPTBlock, SmallCNN, dense, stripes
from tests.diagnostics.corpus.register import ordinary


@ordinary
def cnn_with_validation_each_epoch() -> Setup:
    model = SmallCNN()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        train = DataLoader(TensorDataset(*stripes(128)), batch_size=16, shuffle=True)
        valid = DataLoader(TensorDataset(*stripes(32)), batch_size=32)
        for _ in range(3):
            model.train()
            for x, y in train:
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for x, y in valid:
                    criterion(model(x), y).item()

    return model, run


@ordinary
def cnn_after_two_hundred_steps() -> Setup:
    """Training continues after it nearly converged."""
    model = SmallCNN()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def step() -> None:
        x, y = stripes(24)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()

    for _ in range(200):
        step()

    def run() -> None:
        for _ in range(10):
            step()

    return model, run


class PreActBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: Any) -> Any:
        return x + self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))


@ordinary
def resnet_with_one_cycle() -> Setup:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        PreActBlock(8),
        PreActBlock(8),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.2, total_steps=25)

    def run() -> None:
        for _ in range(25):
            x, y = stripes()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            scheduler.step()

    return model, run


@ordinary
def cnn_with_label_smoothing_and_augmentation() -> Setup:
    model = SmallCNN(width=12)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)

    def run() -> None:
        for _ in range(20):
            x, y = stripes()
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.roll(2, 3), x) + 0.05 * torch.randn_like(x)
            loss = criterion(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()

    return model, run


class TinyViT(nn.Module):
    def __init__(self, dim: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(1, dim, 4, stride=4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 10, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.1, F.gelu, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 3)

    def forward(self, x: Any) -> Any:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.encoder(x))[:, 0])


@ordinary
def vit_with_warmup_and_clipping() -> Setup:
    model = TinyViT()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    warmup = torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.1, total_iters=8)

    def run() -> None:
        model.train()
        for _ in range(25):
            x, y = stripes()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            warmup.step()

    return model, run


class ConvAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()
        )
        self.dec = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
        )

    def forward(self, x: Any) -> Any:
        return self.dec(self.enc(x))


@ordinary
def denoising_autoencoder() -> Setup:
    model = ConvAE()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(25):
            clean, _ = stripes()
            noisy = clean + 0.2 * torch.randn_like(clean)
            loss = F.mse_loss(model(noisy), clean)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU())
        self.fc_mu = nn.Linear(64, 6)
        self.fc_logvar = nn.Linear(64, 6)
        self.decoder = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 144))

    def forward(self, x: Any) -> Any:
        h = self.encoder(x)
        mu, logvar = self.fc_mu(h), self.fc_logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar) if self.training else mu
        return self.decoder(z), mu, logvar


@ordinary
def vae_of_binary_images() -> Setup:
    """The loss is summed over pixels and averaged over the batch, as the evidence lower bound is written."""
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(25):
            x = (stripes()[0] > 0.7).float()
            logits, mu, logvar = model(x)
            reconstruction = F.binary_cross_entropy_with_logits(logits, x.flatten(1), reduction="sum")
            kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
            loss = (reconstruction + kl) / len(x)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.down2 = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 1, 1))

    def forward(self, x: Any) -> Any:
        a = self.down1(x)
        b = self.down2(a)
        return self.out(torch.cat([a, self.up(b)], 1))


@ordinary
def unet_segmentation() -> Setup:
    model = UNet()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def dice(logits: Any, mask: Any) -> Any:
        p = logits.sigmoid()
        return 1 - (2 * (p * mask).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)

    def run() -> None:
        for _ in range(20):
            x, _ = stripes(16)
            mask = (x > 0.8).float()
            logits = model(x)
            loss = F.binary_cross_entropy_with_logits(logits, mask) + dice(logits, mask).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
        )
        self.neck = nn.Linear(16 * 36, 64)
        self.box = nn.Linear(64, 4)
        self.label = nn.Linear(64, 2)

    def forward(self, x: Any) -> Any:
        h = F.relu(self.neck(self.backbone(x).flatten(1)))
        return self.box(h), self.label(h)


@ordinary
def boxes_and_labels() -> Setup:
    """A head for boxes and one for labels, with a weighted sum of losses."""
    model = Detector()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(25):
            x = 0.2 * torch.randn(24, 1, 12, 12)
            corner = torch.randint(0, 8, (24, 2))
            side = torch.randint(2, 5, (24,))
            for image, (i, j), s in zip(x, corner.tolist(), side.tolist(), strict=True):
                image[0, i : i + s, j : j + s] += 1.0
            boxes = torch.stack([corner[:, 0], corner[:, 1], side, side], 1).float() / 12
            box, label = model(x)
            loss = 5 * F.smooth_l1_loss(box, boxes) + F.cross_entropy(label, (side > 3).long())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@ordinary
def segmentation_with_focal_loss() -> Setup:
    model = UNet()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def focal(logits: Any, target: Any, alpha: float = 0.5, gamma: float = 2.0) -> Any:
        bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        p = torch.exp(-bce)
        return (alpha * (1 - p) ** gamma * bce).mean()

    def run() -> None:
        for _ in range(20):
            x, _ = stripes(16)
            loss = focal(model(x), (x > 0.8).float())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@ordinary
def frozen_backbone_and_new_head() -> Setup:
    """Fine-tuning: a trained backbone is frozen and kept in eval mode, only the new head is in the optimizer."""
    model = SmallCNN()
    pretraining = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(40):
        x, y = stripes(24)
        pretraining.zero_grad()
        F.cross_entropy(model(x), y).backward()
        pretraining.step()
    model.requires_grad_(False)
    model.fc = nn.Linear(16, 2)
    opt = torch.optim.Adam(model.fc.parameters(), lr=0.01)

    def run() -> None:
        model.eval()
        model.fc.train()
        for _ in range(20):
            x, y = stripes()
            loss = F.cross_entropy(model(x), (y == 2).long())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@ordinary
def fine_tuning_with_two_rates() -> Setup:
    """The trained backbone gets a tenth of the head's learning rate."""
    model = SmallCNN()
    pretraining = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(40):
        x, y = stripes(24)
        pretraining.zero_grad()
        F.cross_entropy(model(x), y).backward()
        pretraining.step()
    model.fc = nn.Linear(16, 2)
    head = list(model.fc.parameters())
    body = [p for name, p in model.named_parameters() if not name.startswith("fc")]
    opt = torch.optim.AdamW([{"params": body, "lr": 1e-4}, {"params": head, "lr": 5e-3}])

    def run() -> None:
        model.train()
        for _ in range(15):
            x, y = stripes()
            loss = F.cross_entropy(model(x), (y == 2).long())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class ToyGAN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.G = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
        self.D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


@ordinary
def gan_of_a_ring() -> Setup:
    gan = ToyGAN()
    opt_g = torch.optim.Adam(gan.G.parameters(), lr=1e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(gan.D.parameters(), lr=1e-3, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()

    def run() -> None:
        ones, zeros = torch.ones(48, 1), torch.zeros(48, 1)
        for _ in range(15):
            angle = 2 * math.pi * torch.rand(48)
            real = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(48, 2)
            fake = gan.G(torch.randn(48, 8))
            opt_d.zero_grad()
            (bce(gan.D(real), ones) + bce(gan.D(fake.detach()), zeros)).backward()
            opt_d.step()
            opt_g.zero_grad()
            bce(gan.D(fake), ones).backward()
            opt_g.step()

    return gan, run


class NoisePredictor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 64))
        self.inp = nn.Linear(2, 64)
        self.mid = nn.Linear(64, 64)
        self.out = nn.Linear(64, 2)

    def forward(self, x: Any, t: Any) -> Any:
        frequencies = torch.exp(torch.linspace(0, 4, 8))
        angles = t[:, None] * frequencies
        h = F.silu(self.inp(x) + self.time(torch.cat([angles.sin(), angles.cos()], 1)))
        return self.out(F.silu(self.mid(h)))


@ordinary
def diffusion_of_points() -> Setup:
    model = NoisePredictor()
    average = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(25):
            x0 = torch.randint(2, (64, 2)) * 2.0 - 1 + 0.1 * torch.randn(64, 2)
            t = torch.rand(64)
            keep = torch.cos(0.5 * math.pi * t)[:, None]
            noise = torch.randn_like(x0)
            loss = F.mse_loss(model(keep * x0 + (1 - keep**2).sqrt() * noise, t), noise)
            opt.zero_grad()
            loss.backward()
            opt.step()
            with torch.no_grad():
                for a, b in zip(average.parameters(), model.parameters(), strict=True):
                    a.mul_(0.99).add_(b, alpha=0.01)

    return model, run


@ordinary
def bfloat16_autocast() -> Setup:
    model = SmallCNN()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            x, y = stripes()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class Pretext(nn.Module):
    """An encoder with a projection head, for contrastive learning."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten()
        )
        self.projector = dense(192, 32, 16)

    def forward(self, x: Any) -> Any:
        return F.normalize(self.projector(self.encoder(x)), dim=1)


@ordinary
def simclr() -> Setup:
    model = Pretext()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            x, _ = stripes(24)
            z = model(torch.cat([x + 0.2 * torch.randn_like(x), x + 0.2 * torch.randn_like(x)]))
            similarity = (z @ z.T / 0.2).masked_fill(torch.eye(48, dtype=torch.bool), -1e9)
            loss = F.cross_entropy(similarity, torch.arange(48).roll(24))
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class MaskedAE(nn.Module):
    """Predicts masked patches from the others."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(16, dim)
        self.mask_token = nn.Parameter(0.02 * torch.randn(dim))
        self.pos = nn.Parameter(0.1 * torch.randn(9, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.predict = nn.Linear(dim, 16)

    def forward(self, patches: Any, mask: Any) -> Any:
        x = torch.where(mask[..., None], self.mask_token, self.embed(patches))
        return self.predict(self.encoder(x + self.pos))


@ordinary
def masked_autoencoder() -> Setup:
    model = MaskedAE()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            images, _ = stripes(24)
            patches = F.unfold(images, 4, stride=4).transpose(1, 2)
            mask = torch.rand(24, 9) < 0.5
            loss = F.mse_loss(model(patches, mask)[mask], patches[mask])
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class Separable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.Hardswish()]
        for _ in range(2):
            layers += [nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False), nn.BatchNorm2d(12), nn.Hardswish()]
            layers += [nn.Conv2d(12, 12, 1, bias=False), nn.BatchNorm2d(12), nn.Hardswish()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(12 * 9, 3))

    def forward(self, x: Any) -> Any:
        return self.classifier(F.adaptive_max_pool2d(self.features(x), 3))


@ordinary
def depthwise_network_with_step_schedule() -> Setup:
    model = Separable()
    opt = torch.optim.RMSprop(model.parameters(), lr=3e-3, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.7)

    def run() -> None:
        loader = DataLoader(TensorDataset(*stripes(96, channels=3)), batch_size=24, shuffle=True)
        for _ in range(4):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
            scheduler.step()

    return model, run


class PatchMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_tokens = nn.Linear(16, 24)
        self.position = nn.Parameter(0.02 * torch.randn(9, 24))
        self.blocks = nn.ModuleList(GPTBlock(24, 2) for _ in range(2))
        self.norm = nn.LayerNorm(24)
        self.fc = nn.Linear(24, 3)

    def forward(self, x: Any) -> Any:
        x = self.to_tokens(F.unfold(x, 4, stride=4).transpose(1, 2)) + self.position
        for block in self.blocks:
            x = block(x)
        return self.fc(self.norm(x[:, -1]))


@ordinary
def raster_order_transformer_with_accumulation() -> Setup:
    """Patches are read in raster order by causal blocks; gradients of two small batches make a step."""
    model = PatchMixer()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        batches = [stripes(16) for _ in range(30)]
        for i, (x, y) in enumerate(batches):
            loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            if i % 2 == 1:
                opt.step()
                opt.zero_grad()

    return model, run
