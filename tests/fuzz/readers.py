"""Fuzz the readers of other tools' files: mutated files must be read, or refused with an error of ours.

A trial mutates one kind of file many times. The mutations know the formats: they change numbers and JSON values, insert
instructions into pickles, and put a changed pickle back into a valid archive.
"""

import io
import json
import pickle
import random
import struct
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as QuantizationType
from safetensors.torch import save_file
from torch import Tensor

from normscope.data.tokenizers.huggingface import bytes_to_unicode
from normscope.errors import NormscopeError
from normscope.interop.checkpoint import build_model
from normscope.interop.files.gguf_file import open_gguf
from normscope.interop.files.pickle_file import read_pickle
from normscope.interop.files.safetensors_file import INDEX_NAME, open_safetensors, open_sharded
from normscope.interop.files.tiktoken_pickle import read_tiktoken
from normscope.interop.files.torch_file import read_torch_file
from normscope.interop.gguf.read import read_gguf
from tests.fuzz.corruption import append, change_value, duplicate_part, flip_bit, truncate, zero_block
from tests.fuzz.trial import ProcessResult, Trial

MUTATIONS = 40
"""Files per trial."""
SLOWEST = 5.0
"""Limit of CPU seconds to read one file, far above what any takes."""
NUMBERS = (
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**60,
    2**63,
    2**64 - 1,
)
INSTRUCTIONS = (
    b"(", b"0", b"1", b"2", b"N", b"]", b"}", b")", b"t", b"l", b"d", b"R", b"b", b"a", b"e", b"s", b"u", b"o", b"\x81",
    b"\x92", b"\x85", b"\x86", b"\x87", b"\x8f", b"\x90", b"\x91", b"\x93", b"\x94", b"Q", b".", b"h\0", b"h\1", b"q\0",
    b"j\xff\xff\xff\xff", b"r\xff\xff\xff\x7f", b"K\1", b"M\xff\xff", b"J\xff\xff\xff\xff", b"\x8a\1\1", b"X\2\0\0\0os",
    b"X\6\0\0\0system", b"C\1a", b"\x82\1", b"cos\nsystem\n", b"cbuiltins\ndict\n", b"cbuiltins\nset\n",
    b"ccollections\nOrderedDict\n", b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch\nSize\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"(ios\nsystem\n", b"I99999999999\n",
    b"Fnan\n", b"G\x7f\xf0\0\0\0\0\0\0",
)  # fmt: skip
Mutation = Callable[[Path, random.Random], None]


def set_number(path: Path, rng: random.Random) -> None:
    """Overwrite a number near the start or the end, where the structure of most formats is."""
    data = bytearray(path.read_bytes())
    form = rng.choice(["<B", "<H", "<I", "<Q"])
    size = struct.calcsize(form)
    if len(data) > size:
        reach = min(len(data) - size, 2000)
        at = rng.randrange(reach + 1) if rng.random() < 0.7 else len(data) - size - rng.randrange(reach + 1)
        struct.pack_into(form, data, at, rng.choice(NUMBERS) % 256**size)
    path.write_bytes(data)


def splice(path: Path, rng: random.Random) -> None:
    """Copy a part over another one."""
    data = bytearray(path.read_bytes())
    size = min(rng.choice([1, 4, 8, 40, 200]), len(data))
    source, target = rng.randrange(len(data) - size + 1), rng.randrange(len(data) - size + 1)
    data[target : target + size] = data[source : source + size]
    path.write_bytes(data)


def insert_instruction(path: Path, rng: random.Random) -> None:
    """Insert or overwrite instructions of a pickle, also of that in an archive of torch.save that is still valid."""
    changed = io.BytesIO()
    try:
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(changed, "w") as target:
            for name in archive.namelist():
                data = archive.read(name)
                target.writestr(name, _with_instruction(data, rng) if name.endswith("data.pkl") else data)
    except Exception:  # zipfile raises many kinds
        changed = io.BytesIO(_with_instruction(path.read_bytes(), rng))
    path.write_bytes(changed.getvalue())


def _with_instruction(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 3)):
        at, instruction = rng.randrange(len(data) + 1), rng.choice(INSTRUCTIONS) * rng.choice([1, 1, 1, 3, 200])
        data = data[:at] + instruction + data[at + rng.choice([0, len(instruction)]) :]
    return data


def change_header(path: Path, rng: random.Random) -> None:
    """Change a value in the JSON header of a safetensors file, and its length with it."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = path.with_name("header.json")
    header.write_bytes(data[8 : 8 + length])
    change_value(header, rng)
    content = header.read_bytes()
    path.write_bytes(len(content).to_bytes(8, "little") + content + data[8 + length :])


ANY: tuple[Mutation, ...] = (set_number, splice, flip_bit, truncate, duplicate_part, append, zero_block)


@dataclass(frozen=True)
class Sample:
    """A valid file of a format.

    Args:
        name: name of the file that is mutated.
        mutations: ways to change it.
        write: writes it, and what belongs to it, into a folder.
        read: reads it completely, given the folder.
    """

    name: str
    mutations: tuple[Mutation, ...]
    write: Callable[[Path], object]
    read: Callable[[Path], object]


def _write_safetensors(folder: Path) -> None:
    tensors = {"a.weight": torch.ones(3, 4), "b": torch.zeros(5, dtype=torch.bfloat16), "c": torch.tensor([True])}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _write_sharded(folder: Path) -> None:
    for name in "ab":
        save_file({name: torch.ones(2, 3)}, folder / f"{name}.safetensors")
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": {name: f"{name}.safetensors" for name in "ab"}}))


def _write_torch(folder: Path) -> None:
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "config": {"n_layer": 1, "bias": None}}
    torch.save(content, folder / "ckpt.pt")


def _write_meta(folder: Path) -> None:
    meta = {"vocab_size": 3, "itos": dict(enumerate("abc")), "x": [1.5, (None, b"a", {2}), np.float32(1), 2**70]}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta, 4))


def _write_tiktoken(folder: Path) -> None:
    state = {"name": "x", "pat_str": r"\w+", "mergeable_ranks": {b"a": 0, b"b": 1}, "special_tokens": {"<|bos|>": 2}}
    content = b"\x80\x04ctiktoken.core\nEncoding\n)\x81" + pickle.dumps(state, 4)[2:-1] + b"b."
    (folder / "tokenizer.pkl").write_bytes(content)


def _write_gguf(folder: Path) -> None:
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_array("tokens", ["a", "b", "é"])
    writer.add_array("scores", [1.5, -2.0])
    writer.add_uint32("llama.block_count", 2)
    for kind in (QuantizationType.F32, QuantizationType.F16, QuantizationType.Q8_0, QuantizationType.Q4_0):
        writer.add_tensor(kind.name, gguf.quants.quantize(np.ones((2, 32), np.float32), kind), raw_dtype=kind)
    for kind in (QuantizationType.Q4_K, QuantizationType.Q6_K):
        data = np.zeros((2, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_gguf_model(folder: Path) -> None:
    width, tokens = 8, [*bytes_to_unicode(), "he", "<|end|>"]
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    for key in ("context_length", "embedding_length", "feed_forward_length"):
        writer.add_uint32(f"llama.{key}", width)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_token_merges(["h e"])
    rows = {"token_embd": len(tokens), "blk.0.attn_k": 4, "blk.0.attn_v": 4}
    rows |= dict.fromkeys((f"blk.0.{name}" for name in ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down")), 8)
    for name, count in rows.items():
        writer.add_tensor(f"{name}.weight", np.ones((count, width), np.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def use(value: Any) -> None:
    """Read every byte of the tensors in a value."""
    if isinstance(value, Tensor):
        value.contiguous().flatten().view(torch.uint8).sum()
    elif isinstance(value, Mapping):
        for each in value:
            use(value[each])
    elif isinstance(value, list | tuple):
        for each in value:
            use(each)


def _gguf(folder: Path) -> object:
    file = open_gguf(folder / "model.gguf")
    return [file.metadata, file.tensors]


SAMPLES: Mapping[str, Sample] = {
    "safetensors": Sample(
        "model.safetensors",
        (*ANY, change_header, change_header, change_header),
        _write_safetensors,
        lambda folder: open_safetensors(folder / "model.safetensors"),
    ),
    "safetensors index": Sample(INDEX_NAME, (change_value, splice, flip_bit), _write_sharded, open_sharded),
    "torch.save": Sample(
        "ckpt.pt",
        (*ANY, insert_instruction, insert_instruction, insert_instruction),
        _write_torch,
        lambda folder: read_torch_file(folder / "ckpt.pt"),
    ),
    "pickle": Sample(
        "meta.pkl",
        (*ANY, insert_instruction, insert_instruction),
        _write_meta,
        lambda folder: read_pickle(folder / "meta.pkl"),
    ),
    "tiktoken": Sample(
        "tokenizer.pkl",
        (*ANY, insert_instruction),
        _write_tiktoken,
        lambda folder: read_tiktoken(folder / "tokenizer.pkl"),
    ),
    "GGUF model": Sample(
        "model.gguf",
        (set_number, set_number, set_number, *ANY),
        _write_gguf_model,
        lambda folder: build_model(read_gguf(folder / "model.gguf")).state_dict(),
    ),
    "GGUF": Sample("model.gguf", (set_number, set_number, set_number, *ANY), _write_gguf, _gguf),
}


def reader_trial(rng: random.Random, kind: str | None = None) -> Trial:
    """Mutate a file many times, and read each."""
    kind = kind or rng.choice(list(SAMPLES))
    seed = rng.randrange(2**32)
    return Trial(
        f"reader: {kind}",
        f"{kind} (seed {seed})",
        lambda: read_mutated(SAMPLES[kind], random.Random(seed)),
        lambda result, folder: "detected" if _counts(result)["refused"] else "harmless",
        seconds=SLOWEST * MUTATIONS,
    )


def read_mutated(sample: Sample, rng: random.Random) -> int:
    """Read mutated files; raises what a reader raises, unless it is an error of ours."""
    folder = Path.cwd()
    sample.write(folder)
    path = folder / sample.name
    original = path.read_bytes()
    use(sample.read(folder))
    counts = {"read": 0, "refused": 0}
    for _ in range(MUTATIONS):
        path.write_bytes(original)
        mutations = [rng.choice(sample.mutations) for _ in range(rng.randint(1, 3))]
        for mutate in mutations:
            if path.stat().st_size:
                mutate(path, rng)
        names = ", ".join(mutate.__name__ for mutate in mutations)
        start = time.process_time()
        try:
            use(sample.read(folder))
            counts["read"] += 1
        except NormscopeError as error:
            counts["refused"] += 1
            if "\nfix: " not in str(error):
                raise AssertionError(f"{names}: an error without a fix") from error
        except BaseException as error:
            raise AssertionError(f"{names}: {error!r}") from error
        assert time.process_time() - start < SLOWEST, f"{names}: slow"
    print(json.dumps(counts))
    return 0


def _counts(result: ProcessResult) -> dict[str, int]:
    counts: dict[str, int] = json.loads(result.out)
    return counts
