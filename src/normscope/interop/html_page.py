"""Read the model back from an exported page: with exactly the weights that the page computes with."""

import base64
import binascii
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from normscope.checks import as_path
from normscope.data.tokenizers.load import ModelTokens, parse_tokenizer
from normscope.errors import FileError, NormscopeError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.models.config_json import config_from_json
from normscope.models.gpt import GPT
from normscope.storage.files import open_regular, read_limited
from normscope.storage.json_files import LARGE_FILE_BYTES, FileFormat, JsonSource, reraise_as

PAGE_FORMAT = FileFormat(1)
_FIX = "pass a page written by `normscope export --to html`"
_MODEL = re.compile(rb'<script type="application/json" id="model">([^<]*)</script>')
_WEIGHTS = re.compile(rb'<script type="text/plain" id="weights">([^<]*)</script>')

Size = Annotated[int, msgspec.Meta(ge=0)]


class PackedTensor(msgspec.Struct, forbid_unknown_fields=True):
    """A tensor of the page, and where its bytes start."""

    name: str
    shape: list[Size]
    dtype: Literal["int8", "float32"]
    offset: Size


class PageContent(msgspec.Struct):
    """What `read_page` needs of the page's JSON; the rest is for people to read."""

    config: dict[str, Any]
    tokenizer: dict[str, Any]
    tensors: list[PackedTensor]


def read_page(path: str | Path) -> ExternalCheckpoint:
    """Read the model and the tokenizer of a page that `export(run, to="html")` wrote.

    The weights are those that the page computes with: int8 values times their scale, in float32. So the page and
    `generate_text` give the same tokens.
    """
    path = as_path(path, "an exported page")
    with reraise_as(FileError, _FIX), open_regular(path) as file:
        page = read_limited(file, path, LARGE_FILE_BYTES)
    source = JsonSource(path, _FIX)
    found, encoded = _MODEL.search(page), _WEIGHTS.search(page)
    if found is None or encoded is None:
        raise source.problem("is not an exported page: it has no model")
    content = source.parse(found[1], dict[str, Any], file_format=PAGE_FORMAT, allow_any_text=True)
    entries = source.convert(content, PageContent)
    try:
        data = base64.b64decode(encoded[1], validate=True)
    except binascii.Error:
        raise source.problem("is damaged: its weights are not base64") from None
    try:
        config = config_from_json(entries.config)
        with torch.device("meta"):  # shapes only; raises if the sizes are impossible
            expected = {name: list(tensor.shape) for name, tensor in GPT(config).state_dict().items()}
    except NormscopeError as error:
        raise source.wrap(error, "is not a valid model") from error
    if {entry.name: entry.shape for entry in entries.tensors} != expected:
        raise source.problem("is damaged: its tensors are not those of its config")
    weights = {entry.name: _tensor(entry, data, source) for entry in entries.tensors}
    tokens = ModelTokens(config.vocab_size, None)
    tokenizer = parse_tokenizer(json.dumps(entries.tokenizer).encode(), path, model=tokens)
    return ExternalCheckpoint("exported page", path, config, weights, tokenizer)


def _tensor(entry: PackedTensor, data: bytes, source: JsonSource) -> Tensor:
    count = int(np.prod(entry.shape))
    if entry.dtype == "float32":
        return torch.from_numpy(_array(data, "<f4", entry.offset, count, source)).reshape(entry.shape)
    rows = entry.shape[0]
    values = torch.from_numpy(_array(data, "i1", entry.offset, count, source)).reshape(rows, -1)
    scale = torch.from_numpy(_array(data, "<f4", entry.offset + count + -count % 4, rows, source))
    return (values.float() * scale[:, None]).reshape(entry.shape)


def _array(data: bytes, dtype: str, offset: int, count: int, source: JsonSource) -> Any:
    if offset + count * np.dtype(dtype).itemsize > len(data):
        raise source.problem("is damaged: its weights end too early")
    return np.frombuffer(data, dtype, count, offset).astype(dtype.replace("<", "="))
