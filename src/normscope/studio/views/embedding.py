"""The tab "Embedding": how text becomes (b, s, d), and an image a sequence of patches."""

import functools
from typing import Annotated, Any, Literal

import msgspec
import torch
from torch import Tensor

from normscope.blocks.linear import Embedding
from normscope.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from normscope.errors import ConfigError
from normscope.learning.lesson import seeded
from normscope.models.vit import ViT, ViTConfig
from normscope.studio.endpoints import Endpoint, Name, NoArguments
from normscope.studio.state import StudioState
from normscope.studio.token_text import token_text

MAX_LINES, MAX_TOKENS = 8, 48
"""Sequences in the batch, and tokens in a sequence."""
MAX_SHOWN_WIDTH = 16
"""Features shown of each vector."""
NEW_WIDTH = 6
"""Embedding width of a table that is not a run's."""
CHANNELS = 3

Brightness = Annotated[float, msgspec.Meta(ge=0, le=1)]


class TextRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Lines of text, each a sequence of the batch.

    Args:
        tokenizer: one token per character or per byte, with a new table; or the tokenizer and the table of a run.
        run: the name of the run.
    """

    text: Annotated[str, msgspec.Meta(max_length=1000)]
    tokenizer: Literal["characters", "bytes", "run"] = "characters"
    run: Name = ""


class ImageRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An image.

    Args:
        size: height and width.
        patch: side length of a patch.
        pixels: brightness of each channel, in the order c h w; None for a generated image.
    """

    size: Annotated[int, msgspec.Meta(ge=2, le=16)] = 8
    patch: Annotated[int, msgspec.Meta(ge=1, le=16)] = 2
    pixels: Annotated[list[Brightness], msgspec.Meta(max_length=CHANNELS * 16**2)] | None = None


def tokenizers(studio: StudioState, request: NoArguments) -> dict[str, Any]:
    """What the page offers: the tokenizers of the runs besides those that are built in, and the limits."""
    return {"runs": studio.run_names(), "max_lines": MAX_LINES, "max_tokens": MAX_TOKENS}


def text(studio: StudioState, request: TextRequest) -> dict[str, Any]:
    """Tokens, ids, the rows of the table that they pick, and the batch with its padding and mask."""
    lines = [line for line in request.text.splitlines() if line]
    if not lines:
        raise ConfigError("there is no text\nfix: type a sentence; each line becomes a sequence of the batch")
    if len(lines) > MAX_LINES:
        raise ConfigError(f"the text has {len(lines)} lines, more than {MAX_LINES}\nfix: remove some")
    tokenizer, weight = _tokenizer_and_table(studio, request, lines)
    sequences = [torch.from_numpy(tokens.astype("int64")) for tokens in tokenizer.encode_many(lines)]
    longest = max(map(len, sequences))
    if longest > MAX_TOKENS:
        raise ConfigError(f"a line has {longest} tokens, more than {MAX_TOKENS}\nfix: make it shorter")
    pad = tokenizer.start_token_id  # any id will do: the mask hides it
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=pad)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    mask = torch.arange(longest) < lengths[:, None]
    shown = min(MAX_SHOWN_WIDTH, weight.shape[1])
    x = torch.nn.functional.embedding(ids, weight)
    picked = ids.unique().tolist()
    return {
        "tokens": [[token_text(tokenizer, token) for token in row.tolist()] for row in sequences],
        "ids": ids,
        "mask": mask,
        "pad": pad,
        "vocab_size": weight.shape[0],
        "width": weight.shape[1],
        "rows": [{"id": id, "token": token_text(tokenizer, id), "vector": weight[id, :shown]} for id in picked],
        "x": x[:, :, :shown],
        "shape": x.shape,
    }


def _tokenizer_and_table(studio: StudioState, request: TextRequest, lines: list[str]) -> tuple[Tokenizer, Tensor]:
    if request.tokenizer == "run":
        model, tokenizer = studio.load(request.run)
        return tokenizer, model.embedding.weight.detach().float()
    own = ByteTokenizer() if request.tokenizer == "bytes" else CharacterTokenizer.of(lines)
    with studio.rng_lock:
        return own, _new_table(own.vocab_size)


@functools.lru_cache(maxsize=64)
def _new_table(vocab_size: int) -> Tensor:
    return seeded(lambda: Embedding(vocab_size, NEW_WIDTH)).weight.detach()


def image(studio: StudioState, request: ImageRequest) -> dict[str, Any]:
    """An image (1, c, h, w), its patches (1, s, c p p), and their embedding (1, s, d), by a new `ViT`."""
    size, patch = request.size, request.patch
    if request.pixels is None:
        images = example_image(size)
    elif len(request.pixels) == CHANNELS * size**2:
        images = torch.tensor(request.pixels).reshape(1, CHANNELS, size, size)
    else:
        raise ConfigError(
            f"got {len(request.pixels)} values for an image of {CHANNELS} channels and {size} x {size} pixels\n"
            f"fix: pass {CHANNELS * size**2} values"
        )
    with studio.rng_lock:
        vit = _new_vit(size, patch)
    places = torch.arange(images.numel()).reshape(images.shape).float()
    with torch.no_grad():
        patches = vit.patches(images)
        embedded = vit.embedding(patches)
    return {
        "size": size,
        "patch": patch,
        "patch_sizes": [n for n in range(1, size + 1) if size % n == 0],
        "pixels": images.flatten(),
        "image_shape": images.shape,
        "patches": patches[0],
        "patches_shape": patches.shape,
        "places": vit.patches(places)[0].int(),
        "embedded": embedded[0],
        "embedded_shape": embedded.shape,
        "layer": repr(vit.embedding),
    }


@functools.lru_cache(maxsize=32)
def _new_vit(size: int, patch: int) -> ViT:
    config = ViTConfig(image_size=size, patch=patch, channels=CHANNELS, width=NEW_WIDTH, heads=1, depth=1)
    return seeded(lambda: ViT(config))


def example_image(size: int) -> Tensor:
    """A small landscape: a sun in the sky above a hill."""
    y, x = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    sky = torch.stack([0.35 + 0.45 * y, 0.6 + 0.3 * y, torch.full_like(y, 0.95)])
    hill = torch.stack([0.15 + 0.2 * x, 0.55 - 0.2 * y, torch.full_like(y, 0.2)])
    sun = torch.tensor([1.0, 0.85, 0.25])[:, None, None].expand_as(sky)
    picture = sky.where((x - 0.75) ** 2 + (y - 0.22) ** 2 > 0.03, sun)
    return picture.where(y < 0.85 - 0.35 * torch.sin(2.6 * x), hill)[None]


ENDPOINTS: dict[str, Endpoint] = {"embedding/tokenizers": tokenizers, "embedding/text": text, "embedding/image": image}
