"""Write model.onnx, with its weights beside it if they are large, and tokenizer.json."""

import json
from pathlib import Path

from normscope.exporting.library_tokenizer import eos_of, library_json
from normscope.exporting.model_source import ModelSource
from normscope.exporting.onnx.graph import MAX_BYTES
from normscope.exporting.onnx.model_graph import check_model, onnx_graph
from normscope.models.config_json import config_to_json


def check_onnx(source: ModelSource) -> None:
    """Raise a ConfigError if the graph cannot represent the model."""
    check_model(source.model)


def write_onnx(source: ModelSource, weights: str, folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Write model.onnx, tokenizer.json and config.json into an empty folder.

    Args:
        source: The model.
        weights: "float32".
        folder: The folder.
        max_bytes: Weights that take more are in model.onnx.data.
    """
    eos = eos_of(source.tokenizer)
    facts = {"context": source.model.config.context, "eos_token_id": eos}
    properties = {name: str(value) for name, value in facts.items() if value is not None}
    onnx_graph(source.model).write(folder / "model.onnx", source.name, properties, max_bytes)
    (folder / "tokenizer.json").write_text(library_json(source.tokenizer), encoding="utf-8")
    settings = {**config_to_json(source.model.config), "eos_token_id": eos}
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
