"""Write model.onnx, with its weights beside it if they are large, and tokenizer.json."""

import json
from pathlib import Path

from normscope.errors import ConfigError
from normscope.exporting.html_support import check_config, norm_tables
from normscope.exporting.library_tokenizer import eos_of, library_json
from normscope.exporting.model_source import ModelSource
from normscope.exporting.onnx.graph import MAX_BYTES
from normscope.exporting.onnx.model_graph import onnx_graph
from normscope.models.config_json import config_to_json


def check_onnx(source: ModelSource) -> None:
    """Raise a ConfigError if the graph cannot represent the model."""
    config = source.model.config
    check_config(config, "the ONNX graph")
    norm_tables(source.model)
    if not source.model.cacheable:
        raise ConfigError(
            f"an ONNX graph with a KV cache cannot represent norm={config.norm}: it shares statistics between tokens\n"
            f"fix: train with a norm over the features of a token, such as --model norm=rms"
        )


def write_onnx(source: ModelSource, weights: str, folder: Path) -> None:
    """Write model.onnx, tokenizer.json and config.json into an empty folder."""
    graph = onnx_graph(source.model)
    onnx, model = graph.onnx, graph.model(source.name)
    facts = {"context": source.model.config.context, "eos_token_id": eos_of(source.tokenizer)}
    onnx.helper.set_model_props(model, {name: str(value) for name, value in facts.items() if value is not None})
    is_large = graph.size > MAX_BYTES
    onnx.save_model(model, folder / "model.onnx", save_as_external_data=is_large, location="model.onnx.data")
    (folder / "tokenizer.json").write_text(library_json(source.tokenizer), encoding="utf-8")
    settings = {**config_to_json(source.model.config), "eos_token_id": eos_of(source.tokenizer)}
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
