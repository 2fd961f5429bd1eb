"""Imported models of every family: in ONNX they give the logits of transformers; the page refuses by a field's name."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import transformers

from normscope.data.tokenizers import CharacterTokenizer
from normscope.errors import ConfigError
from normscope.exporting import html_support
from normscope.exporting.export import export_source
from normscope.exporting.model_source import ModelSource
from normscope.interop.huggingface.families import families
from normscope.interop.huggingface.read import gpt_from_huggingface
from normscope.models.gpt import GPT
from tests.exporting.families import source_of
from tests.exporting.models import TEXT
from tests.interop.checkpoints import FORMS, made, stored
from tests.pairs import chiefly
from tests.support import random_tokens

FAST = ["gemma3-linear", "olmo2-bias", "smollm3-window"]
PAGE_LACKS = {
    "attention_cap": ["gemma2", "gemma2-bias"],
    "attention_scale": ["gemma2-no-caps", "gemma3", "gemma3-linear"],
    "rotary_dim": ["phi3-part", "neox", "neox-sequential", "neox-yarn", "neox-half-rotary"],
    "rotary_pattern": ["smollm3", "smollm3-window"],
    "rotary_scaling": ["llama-3", "llama-linear", "llama-yarn", "qwen2-yarn", "neox-all-rotary", "phi3-longrope"],
    "window_pattern": ["qwen2-window", "qwen3-window"],
    "wiring": ["olmo2", "olmo2-bias"],
}
"""The models that the page refuses, by the field that its message names."""


@pytest.mark.parametrize("form", chiefly(FAST, [form for form in FORMS if form not in FAST]))
def test_onnx_gives_the_logits_of_transformers(form: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from normscope.comparing.runtimes.onnx_runtime import OnnxRuntime

    theirs = made(form)
    model = gpt_from_huggingface(theirs.config.to_dict(), stored(theirs))
    source = ModelSource(model, CharacterTokenizer.of([TEXT]), {"name": form})
    path = export_source(source, "onnx", tmp_path / "m-onnx", "float32", "require").path
    tokens = random_tokens(model.config.vocab_size, 2, model.config.context)
    with torch.no_grad():
        expected = theirs(tokens).logits
    runtime = OnnxRuntime(path)
    logits = torch.tensor(runtime.run(tokens.tolist(), runtime.empty_cache(2))[0])
    assert ((logits - expected).abs().max() / expected.std()).item() < 1e-4


@pytest.mark.parametrize("form", FORMS)
def test_the_page_names_the_field_that_it_lacks(form: str) -> None:
    name, settings = FORMS[form]
    theirs = getattr(transformers, f"{name}Config")(**settings).to_dict()
    config = families()[theirs["model_type"]].read_config(theirs)
    lacks = next((field for field, forms in PAGE_LACKS.items() if form in forms), None)
    with nullcontext() if lacks is None else pytest.raises(ConfigError, match=f"cannot run a model with {lacks}="):
        html_support.check_config(config)
        html_support.norm_tables(GPT(config))


def test_gains_are_rounded_as_they_are_stored(tmp_path: Path) -> None:
    """Gemma's are stored as their difference from one, which bfloat16 rounds to other numbers."""
    proof = export_source(source_of("gemma2"), "hf", tmp_path / "m-hf", "bfloat16", "require").proof
    assert proof is not None
    assert proof.rounding > 0
