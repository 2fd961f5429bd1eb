"""Small data sets for the cases: each call draws new samples of the same task."""

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


def _centers(classes: int, width: int) -> Tensor:
    return 1.5 * torch.randn(classes, width, generator=torch.Generator().manual_seed(7))


def blobs(count: int, width: int = 10, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Clusters around fixed centers, and their numbers."""
    y = torch.randint(classes, (count,))
    return _centers(classes, width)[y] + 0.7 * torch.randn(count, width), y


def two_classes(count: int, width: int = 8) -> tuple[Tensor, Tensor]:
    """Points, and 0.0 or 1.0 for the side of a plane on which each lies."""
    x = torch.randn(count, width)
    return x, (x[:, :3].sum(1) > 0).float()


def line(count: int, width: int = 6) -> tuple[Tensor, Tensor]:
    """Points, and a noisy linear function of them, of shape (count,)."""
    x = torch.randn(count, width)
    return x, x @ torch.linspace(-1, 1, width) + 0.1 * torch.randn(count)


def waves(count: int, length: int = 20) -> tuple[Tensor, Tensor]:
    """Sines of shape (count, length, 1), and the value that follows each, of shape (count,)."""
    t = 6.3 * torch.rand(count, 1) + 0.4 * torch.arange(length + 1)
    y = t.sin()
    return y[:, :-1, None], y[:, -1]


def bars(count: int, size: int = 8, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Noisy images with one bright column, and which one of `classes` it is."""
    y = torch.randint(classes, (count,))
    x = 0.3 * torch.randn(count, 1, size, size)
    x[torch.arange(count), 0, :, y * (size // classes)] += 1.5
    return x, y


def digits(count: int, size: int = 8) -> Tensor:
    """Squares of random size and place as images with values from 0 to 1."""
    x = torch.zeros(count, 1, size, size)
    for image in x:
        i, j = (int(n) for n in torch.randint(0, size - 3, (2,)))
        image[0, i : i + 3, j : j + 3] = 1.0
    return (x + 0.05 * torch.rand_like(x)).clamp(0, 1)


def counting(count: int, length: int = 13, vocab: int = 12) -> Tensor:
    """Sequences that count upwards by one or two, modulo `vocab`."""
    start, step = torch.randint(vocab, (count, 1)), torch.randint(1, 3, (count, 1))
    return (start + step * torch.arange(length)) % vocab


def random_tokens(count: int, length: int = 12, vocab: int = 12) -> Tensor:
    return torch.randint(vocab, (count, length))


TEXT = "the cat sat on the mat. the dog sat on the log. a cat and a dog met on the mat. " * 8


def text(count: int, length: int = 16) -> tuple[Tensor, Tensor]:
    """Characters of a short text, each followed by the next: inputs and targets."""
    letters = sorted(set(TEXT))
    ids = torch.tensor([letters.index(letter) for letter in TEXT])
    start = torch.randint(len(ids) - length - 1, (count, 1)) + torch.arange(length + 1)
    return ids[start[:, :-1]], ids[start[:, 1:]]


LETTERS = len(set(TEXT))


def loader(*tensors: Tensor, batch_size: int = 16, shuffle: bool = True) -> "DataLoader[tuple[Tensor, ...]]":
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size, shuffle=shuffle)
