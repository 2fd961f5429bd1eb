"""Healthy setups on images: classifiers, autoencoders, generators, detection, diffusion."""

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.register import ordinary
from tests.diagnostics.corpus.tuning._data import bars, digits, loader


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, 4)
        self.dropout = nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Any:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(self.dropout(F.relu(self.fc1(x.flatten(1)))))


@ordinary
def convnet_with_evaluation_between_epochs() -> Setup:
    model = LeNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    train, test = loader(*bars(128)), loader(*bars(32), shuffle=False)

    def run() -> None:
        for _ in range(2):
            model.train()
            for data, target in train:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(data), target)
                loss.backward()
                optimizer.step()
            model.eval()
            correct = 0
            with torch.no_grad():
                for data, target in test:
                    correct += int(model(data).argmax(dim=1).eq(target).sum())

    return model, run


class BasicBlock(nn.Module):
    def __init__(self, inplanes: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample: nn.Module | None = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x: Tensor) -> Any:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + identity)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 8))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, 2), BasicBlock(16, 16))
        self.fc = nn.Linear(16 * 16, 4)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer2(self.layer1(x)).flatten(1))


@ordinary
def resnet_with_sgd() -> Setup:
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1], gamma=0.1)

    def run() -> None:
        for _ in range(2):
            model.train()
            for images, labels in loader(*bars(128)):
                optimizer.zero_grad()
                F.cross_entropy(model(images), labels).backward()
                optimizer.step()
            scheduler.step()

    return model, run


class ViT(nn.Module):
    def __init__(self, dim: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(1, dim, (8, 2), (8, 2))
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.pos_embed = nn.Parameter(0.5 * torch.randn(1, 5, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.1, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.blocks(x).mean(1))


@ordinary
def vision_transformer_with_warmup() -> Setup:
    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=5)

    def run() -> None:
        for x, y in loader(*bars(400), batch_size=20):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y, label_smoothing=0.05).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()

    return model, run


class AutoEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, 2), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Any:
        return self.decoder(self.encoder(x))


@ordinary
def denoising_autoencoder() -> Setup:
    model = AutoEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for (clean,) in loader(digits(320)):
            noisy = clean + 0.2 * torch.randn_like(clean)
            loss = F.mse_loss(model(noisy), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class VAE(nn.Module):
    def __init__(self, z: int = 4) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 48), nn.Linear(48, z), nn.Linear(48, z)
        self.fc3, self.fc4 = nn.Linear(z, 48), nn.Linear(48, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.fc1(x.flatten(1)))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


@ordinary
def variational_autoencoder() -> Setup:
    """Reconstruction and KL are summed over pixels, and averaged over the batch."""
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for (x,) in loader(digits(320)):
            out, mu, logvar = model(x)
            bce = F.binary_cross_entropy(out, x.flatten(1), reduction="sum")
            kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
            optimizer.zero_grad()
            ((bce + kld) / len(x)).backward()
            optimizer.step()

    return model, run


class UNet(nn.Module):
    def __init__(self, inputs: int = 1, outputs: int = 1) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(inputs, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.down2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.final = nn.Conv2d(16, outputs, 1)

    def forward(self, x: Tensor) -> Any:
        skip = self.down1(x)
        return self.final(torch.cat([skip, self.up(self.down2(skip))], 1))


@ordinary
def segmentation_with_dice_and_bce() -> Setup:
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    def run() -> None:
        for (clean,) in loader(digits(256)):
            mask = (clean > 0.5).float()
            logits = model(clean + 0.3 * torch.randn_like(clean))
            p = logits.sigmoid()
            dice = 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)
            loss = F.binary_cross_entropy_with_logits(logits, mask) + dice
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class Detector(nn.Module):
    """Class, box and objectness of the one object in an image."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.box_head = nn.Sequential(nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 2), nn.Sigmoid())
        self.objectness = nn.Linear(256, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(x)
        return self.box_head(features), self.objectness(features).squeeze(1)


@ordinary
def detection_head_with_two_losses() -> Setup:
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    images = digits(240)
    corner = (images > 0.5).flatten(1).float().argmax(1)
    boxes = torch.stack([corner // 8, corner % 8], 1) / 8
    present = (torch.rand(240) < 0.6).float()
    images = images * present[:, None, None, None] + 0.05 * torch.randn_like(images)

    def run() -> None:
        for x, box, there in loader(images, boxes, present):
            predicted, score = model(x)
            box_loss = (F.smooth_l1_loss(predicted, box, reduction="none").mean(1) * there).sum() / there.sum()
            loss = 5 * box_loss + F.binary_cross_entropy_with_logits(score, there)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 64))
        self.net = nn.Sequential(nn.Linear(64, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 64))

    def forward(self, x: Tensor, t: Tensor) -> Any:
        angle = t[:, None] * torch.exp(-math.log(1000) * torch.arange(8) / 8)
        return self.net(x + self.time(torch.cat([angle.sin(), angle.cos()], 1)))


@ordinary
def diffusion_toy() -> Setup:
    model = Denoiser()
    ema = copy.deepcopy(model).requires_grad_(False)
    both = nn.ModuleDict({"model": model, "ema": ema})
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    alphas = torch.cumprod(1 - torch.linspace(1e-3, 0.1, 50), 0)

    def run() -> None:
        for (image,) in loader(2 * digits(480).flatten(1) - 1):
            t = torch.randint(50, (len(image),))
            noise = torch.randn_like(image)
            a = alphas[t][:, None]
            loss = F.mse_loss(model(a.sqrt() * image + (1 - a).sqrt() * noise, t), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for average, p in zip(ema.parameters(), model.parameters(), strict=True):
                    average.lerp_(p, 0.05)

    return both, run


@ordinary
def gan_done_properly() -> Setup:
    generator = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())
    discriminator = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    gan = nn.ModuleDict({"g": generator, "d": discriminator})
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()

    def run() -> None:
        for (real,) in loader(digits(160).flatten(1)):
            n = len(real)
            opt_d.zero_grad()
            fake = generator(torch.randn(n, 8))
            d_loss = bce(discriminator(real), torch.ones(n, 1)) + bce(discriminator(fake.detach()), torch.zeros(n, 1))
            d_loss.backward()
            opt_d.step()
            opt_g.zero_grad()
            bce(discriminator(fake), torch.ones(n, 1)).backward()
            opt_g.step()

    return gan, run


class DepthwiseNet(nn.Module):
    """Depthwise separable convolutions with squeeze and excitation."""

    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.Hardswish())
        self.depthwise = nn.Conv2d(c, c, 3, padding=1, groups=c, bias=False)
        self.bn1 = nn.BatchNorm2d(c)
        self.se = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, 4, 1), nn.ReLU(), nn.Conv2d(4, c, 1), nn.Hardsigmoid()
        )
        self.pointwise, self.bn2 = nn.Conv2d(c, c, 1, bias=False), nn.BatchNorm2d(c)
        self.classifier = nn.Linear(c * 16, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        y = F.hardswish(self.bn1(self.depthwise(x)))
        y = self.bn2(self.pointwise(y * self.se(y)))
        return self.classifier(F.avg_pool2d(x + y, 2).flatten(1))


@ordinary
def mobile_network_with_rmsprop() -> Setup:
    model = DepthwiseNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, momentum=0.9)

    def run() -> None:
        for x, y in loader(*bars(240)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


@ordinary
def contrastive_learning_of_two_views() -> Setup:
    """SimCLR: two noisy views of each image, and InfoNCE with a temperature of 0.2."""
    encoder = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 32))
    model = nn.Sequential(encoder, nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        for (x,) in loader(digits(320)):
            views = torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])
            z = F.normalize(model(views), dim=1)
            similarity = (z @ z.T / 0.2).fill_diagonal_(-1e9)
            n = len(x)
            loss = F.cross_entropy(similarity, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run
