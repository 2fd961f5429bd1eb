"""Compare with llama.cpp: its converter writes GGUF files of small models of transformers, ours reads them.

    PYTHONPATH=CHECKOUT/gguf-py python -m tests.peers.llama_cpp CHECKOUT

CHECKOUT is a folder with llama.cpp's sources. Its converter is unchanged, but gets a vocabulary from here. Printed are
the largest differences of logits from the model in transformers, and of log-probabilities from the file in llama.cpp.
"""

import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normscope.comparing.runtimes import RuntimeRefusalError
from normscope.comparing.runtimes.llama_cpp import LlamaCppRuntime
from normscope.interop.checkpoint import build_model
from normscope.interop.gguf.read import read_gguf
from tests.interop.checkpoints import made
from tests.interop.gguf_files import add_vocabulary
from tests.interop.test_gguf import FORMS, TOKENS, logits_of

TYPES = ("f32", "q8_0")
BLOCK = 32
"""Quantized rows are a multiple of this."""
WIDTHS = {
    "gpt2": {"n_embd": 64},
    "": {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96},
}


def subclasses(kind: Any) -> Iterator[Any]:
    yield kind
    inner: type
    for inner in kind.__subclasses__():
        yield from subclasses(inner)


def load_converter(checkout: Path) -> Any:
    """Import llama.cpp's converter, with a vocabulary that needs no tokenizer files."""
    sys.path.insert(0, str(checkout))
    converter = importlib.import_module("convert_hf_to_gguf")
    base = importlib.import_module("conversion.base")
    for name in ("llama", "gpt2", "gptneox", "gemma", "phi", "olmo", "qwen"):
        importlib.import_module(f"conversion.{name}")
    for kind in subclasses(base.TextModel):
        kind.set_vocab = lambda self: add_vocabulary(self.gguf_writer, self.hparams["vocab_size"])
    return converter


def convert(converter: Any, model: Any, folder: Path, kind: str) -> Path:
    model.save_pretrained(folder)
    path = folder / "config.json"
    settings = json.loads(path.read_text()) | {"n_ctx": model.config.max_position_embeddings}
    path.write_text(json.dumps(settings))
    vocabulary = {f"token {i}": i for i in range(model.config.vocab_size)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    target = folder / f"model-{kind}.gguf"
    sys.argv = ["convert", str(folder), "--outtype", kind, "--outfile", str(target)]
    converter.main()
    return target


def from_llama_cpp(path: Path, context: int, vocab_size: int) -> float:
    """The largest difference of the log-probabilities from those of the file in llama.cpp."""
    ids = TOKENS[0].tolist()
    runtime = LlamaCppRuntime(
        path, context=context, vocab_size=vocab_size, precision="f32", stop_token_id=vocab_size - 1
    )
    try:
        theirs = runtime.logits(ids)
    finally:
        runtime.close()
    ours = logits_of(build_model(read_gguf(path)))[0].log_softmax(-1).numpy()
    return float(np.nanmax(np.abs(ours - theirs)))


def main(checkout: str) -> None:
    converter = load_converter(Path(checkout))
    print(f"{'':38}{'transformers':>14}" + "".join(f"{f'llama.cpp {kind}':>18}" for kind in TYPES))
    for form, (name, changes) in FORMS.items():
        sizes = WIDTHS.get(name, WIDTHS[""])
        torch.manual_seed(0)
        model = made(name, **{**sizes, **changes, "max_position_embeddings": 128} if name != "gpt2" else sizes)
        with tempfile.TemporaryDirectory() as folder:
            cells = []
            for kind in TYPES:
                try:
                    path = convert(converter, model, Path(folder), kind)
                except KeyError as error:  # a setting that transformers has renamed
                    cells.append(f"  not converted: {error}")
                    break
                if kind == "f32":
                    difference = (logits_of(build_model(read_gguf(path))) - logits_of(model)).abs().max()
                    cells.append(f"{difference:14.0e}")
                try:
                    cells.append(f"{from_llama_cpp(path, 32, model.config.vocab_size):18.0e}")
                except RuntimeRefusalError:
                    cells.append(f"{'refused':>18}")
        print(f"{form:38}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
