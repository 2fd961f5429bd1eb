"""`normscope export`: what is written and read back, and what is refused by name. None of this needs a browser."""

import base64
import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers

import normscope
from normscope.blocks.norm.norm_spec import NormSpec
from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from normscope.data.tokenizers.base import DEFAULT_VOCAB_SIZE
from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer, train_bpe
from normscope.errors import ConfigError, FileError, NonFiniteError, NormscopeError
from normscope.exporting import html, html_support
from normscope.exporting.export import FORMATS
from normscope.exporting.html_support import norm_tables, tokenizer_content
from normscope.generate.decoder import pack
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import preset
from normscope.runs.run import Run
from normscope.training.recipes import dial
from tests.exporting import golden
from tests.studio.serving import RUN

TEMPLATE = b"""<title>@@title@@</title>
<script type="application/json" id="model">@@model@@</script>
<script type="text/plain" id="weights">@@weights@@</script>"""
"""In place of the built page, which needs Node.js."""
SMALL: dict[str, Any] = {"vocab_size": 257, "context": 8, "depth": 2, "width": 16, "heads": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A copy of a committed run: 4 of 8 steps are done."""
    return Run.open(shutil.copytree(RUN, tmp_path_factory.mktemp("export") / "run"))


@pytest.fixture(autouse=True)
def _template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "read_template", lambda: TEMPLATE)


def content_of(path: Path) -> dict[str, Any]:
    found = re.search(r'id="model">(.*?)</script>', path.read_text())
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


def export_page(run: Run | Path, **settings: Any) -> Path:
    """Export a page; the template of these tests has no code that a proof could run."""
    return normscope.export(run, **{"proof": "skip", **settings}).path


@pytest.mark.parametrize("weights", ["int8", "float32"])
def test_a_page_gives_back_its_model_and_tokenizer(run: Run, tmp_path: Path, weights: str) -> None:
    path = export_page(run, weights=weights, out=tmp_path / "page.html")
    model, tokenizer = normscope.load(path)
    original, _ = run.load_model("best")
    assert model.config == original.config
    assert not model.training
    assert tokenizer.to_json() == run.tokenizer().to_json()
    for name, tensor in original.state_dict().items():
        expected = tensor
        if weights == "int8" and tensor.dim() == 2:
            values, scale = pack(tensor, "int8")
            assert scale is not None
            expected = values.float() * scale[:, None]
        assert torch.equal(model.state_dict()[name], expected), name


def test_only_the_weights_of_layers_are_rounded(run: Run) -> None:
    model, _ = run.load_model("best")
    model.blocks[0].register_parameter("gain", torch.nn.Parameter(torch.ones(2, 3)))  # as of a norm with groups
    dtypes = {one["name"]: one["dtype"] for one in html.pack_tensors(model, "int8")[0]}
    assert dtypes["blocks.0.gain"] == "float32"
    assert dtypes["embedding.weight"] == "int8"


def test_the_page_says_what_the_run_is(run: Run, tmp_path: Path) -> None:
    content = content_of(export_page(run.folder, checkpoint=4, out=tmp_path / "page.html"))
    facts = content["facts"]
    assert (facts["name"], facts["step"], facts["steps"]) == ("run", 4, 8)
    assert facts["parameters"] == run.config.model.parameter_count()
    assert 0 < facts["loss"] < 10
    assert content["weights"] == "int8"


def test_by_default_it_is_in_the_run_folder(run: Run) -> None:
    path = export_page(run)
    assert path == run.folder / "run.html"
    path.unlink()
    path.symlink_to("/tmp/elsewhere.html")
    try:
        with pytest.raises(FileError, match="link"):
            export_page(run)
    finally:
        path.unlink()


def test_nothing_in_a_text_can_end_the_script(tmp_path: Path) -> None:
    tokenizer, name = CharacterTokenizer.of(["</script><!--&"]), "</title><script>alert(1)</script>@@weights@@"
    model = GPT(preset("llama", **{**SMALL, "vocab_size": tokenizer.vocab_size}))
    facts = {"name": name, "parameters": 1, "step": 1, "steps": 1}
    page = html.fill_template(TEMPLATE, model, tokenizer, "int8", {"facts": facts, "prompt": "<!--</script>"})
    assert page.count(b"<script") == page.count(b"</script>") == 2
    assert b"<!--" not in page
    path = tmp_path / "page.html"
    path.write_bytes(page)
    assert content_of(path)["facts"]["name"] == name
    assert normscope.load(path)[1].to_json() == tokenizer.to_json()


@pytest.mark.parametrize("settings", [{"to": "exe"}, {"to": 5}, {"weights": "int4"}, {"weights": "bfloat16"}])
def test_unknown_formats_are_refused(run: Run, settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\nfix: use one of"):
        export_page(run, out=tmp_path / "page.html", **settings)
    assert not (tmp_path / "page.html").exists()


def test_every_format_has_a_default_weight_format_and_a_name_of_its_own() -> None:
    assert all(one.weights for one in FORMATS.values())
    assert len({one.suffix for one in FORMATS.values()}) == len(FORMATS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "batch", "allow_future_leak": True}, r"norm='\[b s\] d': it has running statistics"),
        ({"norm": "power"}, r"norm='\[b s\] d': it has running statistics"),
        ({"norm": "instance", "allow_future_leak": True}, r"norm='b \[s\] d': its brackets are not the last features"),
        ({"norm": "[b s d]", "allow_future_leak": True}, "its brackets are not the last features"),
        ({"norm": NormSpec("b s ([g] d)", affine=None, sizes={"g": 4})}, "its brackets are not the last features"),
        ({"norm": NormSpec("b s (g [d])", affine="g", sizes={"g": 4})}, "its weight is not along the last features"),
        ({"qk_norm": NormSpec("b s [h] e", affine=None)}, r"qk_norm='b s \[h\] e': its brackets"),
        ({"qk_norm": NormSpec("b s [h e]", affine=None), "kv_heads": 1}, "it differs between queries and keys"),
    ],
)
def test_norms_that_the_page_lacks_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        norm_tables(GPT(preset("gpt2", **SMALL, **settings)))


def bpe(**changes: Any) -> Tokenizer:
    library = tokenizers.Tokenizer(models.BPE(**changes.pop("model", {})))
    library.pre_tokenizer = changes.pop("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False))
    library.decoder = changes.pop("decoder", decoders.ByteLevel())
    if "normalizer" in changes:
        library.normalizer = changes.pop("normalizer")
    library.add_tokens(changes.pop("added", []))
    return HuggingFaceTokenizer(library)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": normalizers.Lowercase()}, "normalizer='Lowercase'"),
        ({"pre_tokenizer": pre_tokenizers.Whitespace()}, "pre_tokenizer='Whitespace'"),
        ({"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)}, "pre_tokenizer.add_prefix_space=True"),
        ({"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)}, "use_regex=False"),
        ({"decoder": decoders.WordPiece()}, "decoder='WordPiece'"),
        ({"model": {"byte_fallback": True}}, "model.byte_fallback=True"),
        ({"added": ["hello"]}, "added_tokens that are not special, such as 'hello'"),
        ({}, "a vocabulary that lacks the byte 0x00"),
    ],
)
def test_tokenizers_that_the_page_lacks_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        tokenizer_content(bpe(**changes))


def test_our_tokenizers_are_accepted() -> None:
    for tokenizer in (ByteTokenizer(), CharacterTokenizer("abc"), train_bpe(["hello"], 260)):
        assert tokenizer_content(tokenizer) == json.loads(tokenizer.to_json())


def test_nan_is_refused() -> None:
    model = GPT(preset("nanochat", **SMALL))
    with torch.no_grad():
        model.get_parameter("blocks.1.mlp.up.weight")[2, 3] = float("nan")
    with pytest.raises(NonFiniteError, match=r"blocks\.1\.mlp\.up\.weight"):
        html.pack_tensors(model, "int8")


def test_a_model_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_WEIGHT_BYTES", 20_000)
    model = GPT(preset("nanochat", **SMALL))
    assert len(html.pack_tensors(model, "int8")[1]) < 20_000
    with pytest.raises(ConfigError, match="fix: use --weights int8"):
        html.pack_tensors(model, "float32")


def test_the_page_of_the_default_run_is_small() -> None:
    sizes = dial(4).model
    model = GPT(preset("nanochat", vocab_size=DEFAULT_VOCAB_SIZE, **sizes))
    _, data = html.pack_tensors(model, "int8")
    assert len(base64.b64encode(data)) < 2_700_000  # code and tokenizer take 150 KB; 3 MB is the limit


def damaged(page: str, name: str) -> str:
    """An exported page, damaged in one way."""
    found = re.search(r'id="model">(.*?)</script>', page)
    assert found is not None
    content = json.loads(found[1])
    weights = re.search(r'id="weights">(.*?)</script>', page)
    assert weights is not None
    if name == "no model":
        return page.replace('id="model"', 'id="other"')
    if name == "weights end early":
        data = base64.b64decode(weights[1])
        return page.replace(weights[1], base64.b64encode(data[:-4]).decode())
    if name == "not base64":
        return page.replace(weights[1], weights[1][:-5] + "!!!!!")
    changes: dict[str, Any] = {
        "future format": {"format": 99},
        "other config": {"config": {**content["config"], "width": 32}},
        "huge config": {"config": {**content["config"], "width": 10**12}},
        "negative offset": {"tensors": [{**content["tensors"][0], "offset": -4}, *content["tensors"][1:]]},
        "missing tensor": {"tensors": content["tensors"][1:]},
        "no tokenizer": {"tokenizer": {"kind": "words"}},
    }
    return page.replace(found[1], json.dumps({**content, **changes[name]}))


@pytest.mark.parametrize(
    "name",
    [
        *("no model", "weights end early", "not base64", "future format", "other config", "huge config"),
        *("negative offset", "missing tensor", "no tokenizer"),
    ],
)
def test_a_damaged_page_is_refused(run: Run, tmp_path: Path, name: str) -> None:
    path = export_page(run, out=tmp_path / "page.html")
    path.write_text(damaged(path.read_text(), name))
    with pytest.raises(NormscopeError, match=r"page\.html"):
        normscope.load(path)


def test_the_golden_values_of_the_page_are_those_of_python() -> None:
    assert golden.PATH.read_text() == golden.to_json(), "run python -m tests.exporting.golden"


def test_without_the_built_page_it_says_how_to_build_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(html, "TEMPLATE_PATH", "studio/static/nothing.html")
    with pytest.raises(FileError, match="has not been built\nfix: make page"):
        export_page(run)


def test_configs_are_stored_in_full(run: Run, tmp_path: Path) -> None:
    content = content_of(export_page(run, out=tmp_path / "page.html"))
    assert set(content["config"]) == {field.name for field in dataclasses.fields(run.config.model)}


UNSUPPORTED: dict[str, Any] = {
    "attention_cap": 5.0,
    "attention_scale": 0.5,
    "backout": True,
    "embedding_mix": True,
    "embedding_scale": 2.0,
    "local_rotary_base": 10.0,
    "rotary_dim": 2,
    "rotary_pattern": "RN",
    "rotary_scaling": RotaryScaling(kind="linear", factor=2.0),
    "smear": True,
    "value_embeddings": True,
    "window_pattern": "SL",
}


def test_what_the_page_does_not_have_is_refused_by_name() -> None:
    assert sorted(UNSUPPORTED) == sorted(html_support.ONLY_DEFAULT)
    cases = [*UNSUPPORTED.items(), ("wiring", "branch"), ("wiring", "parallel-2"), ("activation", "geglu-tanh")]
    for name, value in cases:
        config = preset("llama", **{"window": 3, name: value})
        with pytest.raises(ConfigError, match=f"the page cannot run a model with {name}="):
            html_support.check_config(config)


def test_the_page_has_every_wiring_and_activation_that_is_not_refused() -> None:
    web = Path(__file__).parents[2] / "web/src/model"
    for name, table in (("wiring", "WIRINGS"), ("activation", "ACTIVATIONS")):
        (source,) = [
            text for path in web.glob("*.ts") if f"const {table}" in (text := path.read_text(encoding="utf-8"))
        ]
        body = source.partition(f"const {table}")[2].partition("\n};")[0]
        found = re.findall(r'^  "?([\w-]+)"?[:,(]', body, re.M)
        assert sorted(found) == sorted(html_support.SUPPORTED[name])


def test_every_field_of_a_config_is_in_the_page_or_refused() -> None:
    """A field that is added to GPTConfig is added to `ModelConfig` of the page, or to `ONLY_DEFAULT`."""
    payload = (Path(__file__).parents[2] / "web/src/model/payload.ts").read_text(encoding="utf-8")
    in_page = set(re.findall(r"^  (\w+): ", payload.partition("interface ModelConfig")[2].partition("}")[0], re.M))
    seen_in_the_weights = {"hidden", "bias", "tied_head", "norm", "qk_norm"}
    without_effect = {"causal", "dropout", "init", "allow_future_leak"}
    known = in_page | seen_in_the_weights | without_effect | {*html_support.ONLY_DEFAULT}
    assert {field.name for field in dataclasses.fields(GPTConfig)} == known
