"""Write a folder that AutoModelForCausalLM and AutoTokenizer load."""

import json
from pathlib import Path
from typing import Any

from normscope.exporting.huggingface.model_card import model_card
from normscope.exporting.library_tokenizer import eos_name, eos_of, library_json
from normscope.exporting.model_source import ModelSource
from normscope.exporting.safetensors_folder import converted, write_shards
from normscope.interop.huggingface.families import family_of
from normscope.interop.huggingface.family import Family


def check_huggingface(source: ModelSource) -> None:
    """Raise a ConfigError if transformers has no architecture for the model."""
    family_of(source.model.config)


def write_huggingface(source: ModelSource, weights: str, folder: Path, family: Family | None = None) -> None:
    """Write config, weights, tokenizer, generation config and model card into an empty folder.

    Args:
        source: the model.
        weights: "stored" for the dtype that the model has, or a dtype.
        folder: the folder.
        family: one that has models of this config; by default the first.
    """
    config, eos = source.model.config, eos_of(source.tokenizer)
    family, state = family or family_of(config), source.model.state_dict()
    write_shards(folder, converted(family.to_theirs(config, state), weights))
    dtype = str(converted(state, weights).specs["embedding.weight"].dtype).removeprefix("torch.")
    # A document starts after the end-of-text token of the one before.
    start = (source.tokenizer.start_tokens or ((eos,) if eos is not None else (None,)))[0]
    special = {name: token for name, token in (("bos_token_id", start), ("eos_token_id", eos)) if token is not None}
    settings = {**family.write_config(config), **special, "dtype": dtype}
    write_json(folder / "config.json", settings)
    write_json(folder / "generation_config.json", {**special, "max_length": config.context})
    write_tokenizer(source, folder)
    (folder / "README.md").write_text(model_card(source, family.architecture, dtype), encoding="utf-8")


def write_tokenizer(source: ModelSource, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json."""
    eos = eos_name(source.tokenizer)
    (folder / "tokenizer.json").write_text(library_json(source.tokenizer), encoding="utf-8")
    own = {} if eos is None else {"bos_token": eos, "eos_token": eos}
    special = {**own, **source.tokenizer.template_variables, **({} if eos is None else {"eos_token": eos})}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "model_max_length": source.model.config.context,
        "clean_up_tokenization_spaces": False,
    }
    template = source.tokenizer.chat_template
    write_json(
        folder / "tokenizer_config.json", settings if template is None else {**settings, "chat_template": template}
    )
    write_json(folder / "special_tokens_map.json", special)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
