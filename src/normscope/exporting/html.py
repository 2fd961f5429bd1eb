"""The model of a run as one HTML page, which runs it without a server or a network.

The page is a template that is built from web/export.html, with the code inside. Three places in it are filled here:

| place     | content                                                                              |
|-----------|--------------------------------------------------------------------------------------|
| title     | the name of the run                                                                  |
| model     | JSON: facts about the run, the config, the norms, the tokenizer, a table of tensors  |
| weights   | base64 of the tensors, little-endian, each at an offset that is a multiple of 4      |

`normscope.interop.html_page` reads such a page.
"""

import base64
import html
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normscope._version import __version__
from normscope.blocks.linear import Embedding, Linear
from normscope.data.tokenizers import Tokenizer
from normscope.errors import ConfigError, FileError, NonFiniteError
from normscope.exporting.html_support import check_config, norm_tables, tokenizer_content
from normscope.exporting.model_source import ModelSource
from normscope.generate.decoder import pack
from normscope.interop.html_page import PAGE_FORMAT
from normscope.models.config_json import config_to_json
from normscope.models.gpt import GPT
from normscope.render.formatting import format_bytes

MAX_WEIGHT_BYTES = 380 * 2**20
"""Browsers limit the length of a string to a little less than 2^29 characters; base64 has 4 for 3 bytes."""
TEMPLATE_PATH = "studio/static/export.html"
"""Built by `make studio`, with the studio's own page."""
_PLACES = ("title", "model", "weights")


def check_html(source: ModelSource) -> None:
    """Raise an error if the page is not built, or cannot run the model."""
    read_template()
    check_config(source.model.config)
    norm_tables(source.model)
    tokenizer_content(source.tokenizer)


def write_html(source: ModelSource, weights: str, path: Path) -> None:
    """Write the page of a model.

    Args:
        source: The model.
        weights: "int8" or "float32".
        path: The file.
    """
    content = {"facts": dict(source.facts), "prompt": source.prompt}
    path.write_bytes(fill_template(read_template(), source.model, source.tokenizer, weights, content))


def fill_template(template: bytes, model: GPT, tokenizer: Tokenizer, weights: str, content: Mapping[str, Any]) -> bytes:
    """Return the page of a model.

    Args:
        template: The page without a model.
        model: The model.
        tokenizer: Its tokenizer.
        weights: "int8" or "float32".
        content: Facts about the run, and its prompt.
    """
    check_config(model.config)
    norms, tokenizer_file = norm_tables(model), tokenizer_content(tokenizer)  # which refuse before anything is packed
    tensors, data = pack_tensors(model, weights)
    filled = {
        "title": html.escape(content["facts"]["name"]).encode(),
        "model": script_json(
            {
                "format": PAGE_FORMAT.version,
                "normscope": __version__,
                **content,
                "config": config_to_json(model.config),
                "norms": norms,
                "tokenizer": tokenizer_file,
                "vocab_size": tokenizer.vocab_size,
                "eos_token_id": tokenizer.eos_token_id,
                "weights": weights,
                "tensors": tensors,
            }
        ),
        "weights": base64.b64encode(data),
    }
    # Split rather than replaced one by one: the name of a run may contain what looks like another place.
    pieces = re.split(rb"@@([a-z]+)@@", template)
    return b"".join(filled[piece.decode()] if i % 2 else piece for i, piece in enumerate(pieces))


def script_json(content: dict[str, Any]) -> bytes:
    r"""Encode JSON for a <script> element: no text in it can end the element or start a comment.

    >>> script_json({"name": "</script><!--"})
    b'{"name":"\\u003c/script>\\u003c!--"}'
    """
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").encode()


def pack_tensors(model: GPT, weights: str) -> tuple[list[dict[str, Any]], bytes]:
    """Pack the weights of a model; returns a table of tensors (name, shape, dtype, offset) and their bytes.

    With "int8", the token embedding and the weights of linear layers are rounded as by `sample --weights int8`: the
    bytes of a tensor are followed by the scale of each row. Everything else is float32.
    """
    table, data = [], bytearray()
    rounded = int8_names(model) if weights == "int8" else set()
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise NonFiniteError(f"the weight {name} has NaN or Inf\nfix: export another checkpoint")
        rounds = name in rounded
        table.append(
            {
                "name": name,
                "shape": list(tensor.shape),
                "dtype": "int8" if rounds else "float32",
                "offset": len(data),
            }
        )
        if rounds:
            packed, scale = pack(tensor, "int8")
            assert scale is not None
            data += _aligned(packed.numpy().tobytes()) + _float32_bytes(scale)
        else:
            data += _float32_bytes(tensor)
        if len(data) > MAX_WEIGHT_BYTES:
            fix = "use --weights int8" if weights == "float32" else "export a smaller model"
            raise ConfigError(
                f"the weights take more than {format_bytes(MAX_WEIGHT_BYTES)}, too much for a browser\nfix: {fix}"
            )
    return table, bytes(data)


def int8_names(model: GPT) -> set[str]:
    """The names of the tensors that "int8" rounds. By module: a norm's gain can be a matrix too, one row per group."""
    layers = {name for name, module in model.named_modules() if isinstance(module, Linear | Embedding)}
    return {f"{name}.weight" for name in layers - {"position"}}


def _float32_bytes(tensor: Tensor) -> bytes:
    return tensor.detach().numpy().astype("<f4").tobytes()


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def read_template() -> bytes:
    """The built page, without a model."""
    path = files("normscope") / TEMPLATE_PATH
    if not path.is_file():
        raise FileError("the page has not been built\nfix: make page (needs Node.js 20 or newer)")
    template = path.read_bytes()
    found = tuple(place.decode() for place in re.findall(rb"@@([a-z]+)@@", template))
    assert found == _PLACES, f"the template has the places {found}"
    return template
