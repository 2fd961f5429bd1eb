"""Models that take more than text: the text part is read, equal to transformers on text; the rest is left out."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.gemma3 import configuration_gemma3, modeling_gemma3

import normscope
from normscope.cli import main
from normscope.data.tokenizers import ByteTokenizer
from normscope.errors import WeightsError
from normscope.interop.checkpoint import build_model
from normscope.interop.config_differences import differing_fields
from normscope.interop.huggingface.families import families
from normscope.interop.huggingface.read import gpt_from_huggingface, read_huggingface
from normscope.interop.huggingface.text_parts import text_model
from tests.interop.checkpoints import GEMMA, VOCABULARY, with_random_weights
from tests.interop.test_huggingface import TOKENS, close

VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
GEMMA_3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
    "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
    "vision_config": {"model_type": "siglip_vision_model"},
}  # fmt: skip
"""The config.json of google/gemma-3-4b-it, with the settings of the vision part left out."""


def gemma3(vocab_size: int = VOCABULARY, **changes: Any) -> Any:
    """A small Gemma 3 that takes images."""
    text = {**GEMMA, "vocab_size": vocab_size, "num_hidden_layers": 7, "query_pre_attn_scalar": 7, "pad_token_id": 0}
    config = configuration_gemma3.Gemma3Config(
        text_config=text, vision_config=VISION, mm_tokens_per_image=4, image_token_index=VOCABULARY - 1, **changes
    )
    model = modeling_gemma3.Gemma3ForConditionalGeneration(config)
    return with_random_weights(model, adds_one=True)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_match(tied: bool, tmp_path: Path) -> None:
    """A folder has the names of the first files, a state_dict those of the modules."""
    theirs = gemma3(tie_word_embeddings=tied)
    theirs.save_pretrained(tmp_path)
    found = read_huggingface(tmp_path)
    with torch.no_grad():
        wanted = theirs(TOKENS).logits
        assert wanted.abs().max() > 1
        close(build_model(found)(TOKENS), wanted)
        close(gpt_from_huggingface(theirs.config.to_dict(), theirs.state_dict())(TOKENS), wanted)
    assert found.config.tied_head is tied
    assert found.format == "Hugging Face gemma3"
    assert found.notices == ("only the text part of the gemma3 model is read: its weights for images are left out",)


def test_settings_that_text_config_lacks_have_the_defaults_of_transformers() -> None:
    settings = text_model(GEMMA_3_4B, {}).settings
    whole = configuration_gemma3.Gemma3Config.from_dict(GEMMA_3_4B).text_config.to_dict()
    ours, theirs = (families()["gemma3_text"].read_config(each) for each in (settings, whole))
    assert differing_fields(ours, theirs) == []
    assert (ours.heads, ours.kv_heads, ours.head_dim, ours.vocab_size) == (8, 4, 256, 262208)
    assert ours.rotary_scaling is not None
    assert settings["eos_token_id"] == [1, 106]


def test_commands_say_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gemma3(vocab_size=300).save_pretrained(tmp_path / "gemma")
    ByteTokenizer().save(tmp_path / "gemma" / "tokenizer.json")
    assert main(["import", str(tmp_path / "gemma"), "--out", str(tmp_path / "run")]) == 0
    assert "note: only the text part of the gemma3 model is read" in capsys.readouterr().err
    assert "only the text part" in normscope.xray_target(str(tmp_path / "gemma")).record.notices[0]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "other-text": ({"text_config": {"model_type": "gemma2"}}, "expected that of a gemma3_text"),
    "no-dict": ({"text_config": 3}, "setting text_config=3"),
    "quantized": ({"quantization_config": {"quant_method": "gptq"}}, "setting quantization_config="),
    "unknown-part": ({}, r"weights not used .*audio_tower\.weight"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused(case: str) -> None:
    theirs = gemma3()
    changes, words = REFUSED[case]
    with pytest.raises(WeightsError, match=words):
        gpt_from_huggingface(
            {**theirs.config.to_dict(), **changes}, {**theirs.state_dict(), "model.audio_tower.weight": torch.ones(2)}
        )


def test_adapters_of_such_a_model_are_refused(tmp_path: Path) -> None:
    gemma3().save_pretrained(tmp_path / "gemma")
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path / "gemma"), "r": 2}
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(WeightsError, match=r"is for a gemma3 model, of which only the text part is read\nfix: merge"):
        normscope.load(tmp_path / "adapter")
