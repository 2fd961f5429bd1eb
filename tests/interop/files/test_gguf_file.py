"""GGUF files: what the gguf package wrote is read as it reads it; files with absurd counts are refused."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as QuantizationType
from numpy.typing import NDArray

from normscope.errors import WeightsError
from normscope.interop.files.gguf_file import MAX_METADATA_BYTES, open_gguf
from normscope.storage.tensor_spec import TensorSpec
from tests.interop.files.hostile import MIB, SPECIAL_FILES, refusal, sparse

QUANTIZED = (QuantizationType.Q8_0, QuantizationType.Q4_0, QuantizationType.Q4_K, QuantizationType.Q6_K)


def random_blocks(kind: QuantizationType, rows: int, blocks: int) -> NDArray[np.uint8]:
    """Rows of random bytes, which cover every bit pattern of a block, with scales that are finite."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(kind.value).integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    scales = {QuantizationType.Q4_K: (0, 2), QuantizationType.Q6_K: (208,)}.get(kind, (0,))
    for start in scales:
        data[..., start + 1] &= 0b10111111  # the highest bit of the exponent
    return data.reshape(rows, -1)


def write(path: Path, change: Callable[[gguf.GGUFWriter], object]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_of_every_type_is_read(tmp_path: Path) -> None:
    values: dict[str, tuple[Any, str]] = {
        "a": (2**64 - 1, "uint64"), "b": (-(2**63), "int64"), "c": (0.5, "float32"), "d": (1e300, "float64"),
        "e": (True, "bool"), "f": ("é\n", "string"), "g": (-5, "int8"), "h": (65535, "uint16"), "i": (7, "uint8"),
        "j": (-7, "int16"), "k": (-70000, "int32"), "l": (70000, "uint32"), "m": (["a", "é", ""], "array"),
        "n": ([1.5, -2.0], "array"), "o": ([True, False], "array"), "p": ([3, -4], "array"),
    }  # fmt: skip

    def add(writer: gguf.GGUFWriter) -> None:
        for key, (value, kind) in values.items():
            getattr(writer, f"add_{kind}")(key, value)

    found = open_gguf(write(tmp_path / "a.gguf", add)).metadata
    assert found == {"general.architecture": "llama", **{key: value for key, (value, _) in values.items()}}
    assert all(type(found[key]) is type(value) for key, (value, _) in values.items())


def test_plain_tensors_are_read_in_their_dtype(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(2, 3, 2) / 7
    bf16 = gguf.quants.quantize(values, QuantizationType.BF16)

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_custom_alignment(64)
        writer.add_tensor("f32", values)
        writer.add_tensor("f16", values.astype(np.float16))
        writer.add_tensor("bf16", bf16, raw_dtype=QuantizationType.BF16)

    found = open_gguf(write(tmp_path / "a.gguf", add))
    expected = torch.from_numpy(values)
    for name, dtype in {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}.items():
        assert found.tensors.specs[name] == TensorSpec((2, 3, 2), dtype)
        assert torch.equal(found.tensors[name], expected.to(dtype))
    assert found.types == {"f32": "F32", "f16": "F16", "bf16": "BF16"}


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_quantized_tensors_are_equal_to_the_bit(
    tmp_path: Path, kind: QuantizationType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normscope.interop.files.gguf_quantization._CHUNK", 1000)
    data = random_blocks(kind, 40, 3)
    path = write(tmp_path / "a.gguf", lambda writer: writer.add_tensor("a", data, raw_dtype=kind))
    expected = gguf.quants.dequantize(data, kind)
    found = open_gguf(path)
    assert found.tensors.specs["a"] == TensorSpec(expected.shape, torch.float32)
    assert np.array_equal(found.tensors["a"].numpy().view(np.uint32), expected.view(np.uint32))


def test_an_unsupported_type_is_refused_by_tensor_and_type(tmp_path: Path) -> None:
    data = random_blocks(QuantizationType.Q5_K, 2, 1)
    path = write(
        tmp_path / "a.gguf", lambda writer: writer.add_tensor("blk.0.x", data, raw_dtype=QuantizationType.Q5_K)
    )
    assert "the tensor 'blk.0.x' has the unsupported type Q5_K; supported are BF16" in refusal(open_gguf, path)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + values


def described(
    name: str = "a", shape: tuple[int, ...] = (2,), kind: int = 0, offset: int = 0, dimensions: int | None = None
) -> bytes:
    count = len(shape) if dimensions is None else dimensions
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", count, *shape, kind, offset)


def gguf_bytes(
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = bytes(8),
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    keys, tensors = keys or [], [described()] if tensors is None else tensors
    start = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(keys)))) + b"".join(keys + tensors)
    return start + bytes(-len(start) % 32) + data


def test_the_files_of_these_tests_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for version in (2, 3):
        path.write_bytes(gguf_bytes([key("b", 9, array(4, 1, bytes(4)))], version=version))
        found = open_gguf(path)
        assert found.metadata == {"b": [0]}
        assert found.tensors["a"].tolist() == [0, 0]


LIES: dict[str, tuple[bytes, str]] = {
    "other magic": (b"GGML" + bytes(40), "is not a GGUF file"),
    "short": (b"GGUF", "is not a GGUF file"),
    "version 1": (gguf_bytes(version=1), "has version 1; GGUF versions 2 and 3"),
    "big-endian": (gguf_bytes(version=3 << 24), "is a big-endian file"),
    "2^60 tensors": (gguf_bytes(counts=(2**60, 0)), "it would have 1,152,921,504,606,846,976 tensors"),
    "2^60 keys": (gguf_bytes(counts=(1, 2**60)), "it would have 1,152,921,504,606,846,976 metadata keys"),
    "more keys than there are": (gguf_bytes(counts=(1, 2)), "is not a valid GGUF file"),
    "key of 2^63 bytes": (gguf_bytes([b"\xff" * 8]), "bytes in a string"),
    "key twice": (gguf_bytes([key("b", 0, b"1"), key("b", 0, b"1")]), "has the key 'b' twice"),
    "unknown value type": (gguf_bytes([key("b", 13, bytes(8))]), "a value of the unknown type 13"),
    "unknown element type": (gguf_bytes([key("b", 9, array(13, 1, bytes(8)))]), "a value of the unknown type 13"),
    "array of 2^60 bytes": (gguf_bytes([key("b", 9, array(0, 2**60))]), "elements in an array, with"),
    "array of 2^60 strings": (gguf_bytes([key("b", 9, array(8, 2**60))]), "elements in an array, with"),
    "array of 2^60 of nothing": (gguf_bytes([key("b", 9, array(77, 2**60))]), "elements in an array, with"),
    "nested arrays": (
        gguf_bytes([key("b", 9, array(9, 10_000, array(4, 0) * 10_000))]),
        "it has an array of arrays, which llama.cpp does not read",
    ),
    "text that is not UTF-8": (gguf_bytes([key("b", 8, struct.pack("<Q", 1) + b"\xff")]), "is not UTF-8"),
    "alignment 0": (gguf_bytes([key("general.alignment", 4, bytes(4))]), "general.alignment 0 instead of a power"),
    "alignment 48": (gguf_bytes([key("general.alignment", 4, struct.pack("<I", 48))]), "alignment 48 instead"),
    "alignment 2^31": (gguf_bytes([key("general.alignment", 4, struct.pack("<I", 2**31))]), "alignment 2147483648"),
    "alignment as text": (gguf_bytes([key("general.alignment", 8, text("32"))]), "alignment '32' instead"),
    "tensor twice": (gguf_bytes(tensors=[described(), described()]), "two tensors have the name 'a'"),
    "2^31 dimensions": (gguf_bytes(tensors=[described(dimensions=2**31)]), "has 2,147,483,648 dimensions"),
    "absurd shape": (gguf_bytes(tensors=[described(shape=(2**40, 2**40))]), "the invalid shape"),
    "empty and absurd": (gguf_bytes(tensors=[described(shape=(0, 2**63))]), "the invalid shape"),
    "unknown type": (gguf_bytes(tensors=[described(kind=99)]), "'a' has the unsupported type 99; supported are"),
    "removed type": (gguf_bytes(tensors=[described(kind=4)]), "'a' has the unsupported type 4"),
    "incomplete block": (gguf_bytes(tensors=[described(shape=(33,), kind=8)]), "blocks of 32"),
    "scalar of blocks": (gguf_bytes(tensors=[described(shape=(), kind=8)]), "blocks of 32"),
    "beyond the end": (gguf_bytes(tensors=[described(shape=(3,))]), "ends at byte"),
    "offset beyond the end": (gguf_bytes(tensors=[described(offset=2**62)]), "ends at byte"),
    "offset not aligned": (gguf_bytes(tensors=[described(offset=4)]), "at offset 4, not a multiple of 32"),
    "overlap": (gguf_bytes(tensors=[described(), described("b")]), "has a tensor 'b' that overlaps another one"),
    "overlap in part": (
        gguf_bytes(tensors=[described(shape=(9,)), described("b", offset=32)], data=bytes(64)),
        "has a tensor 'b' that overlaps another one",
    ),
    "name with an escape": (gguf_bytes(tensors=[described("\x1b[2J", kind=99)]), r"'\x1b[2J' has the unsupported"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_is_refused(tmp_path: Path, lie: str) -> None:
    content, message = LIES[lie]
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    assert message in refusal(open_gguf, path, most_bytes=MIB)


def test_a_terabyte_of_metadata_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    sparse(path, 2**40, gguf_bytes(counts=(1, 1))[:24] + text("b") + struct.pack("<I", 8) + struct.pack("<Q", 2**39))
    assert f"a limit of {MAX_METADATA_BYTES:,}" in refusal(open_gguf, path, most_bytes=4 * MIB)
    sparse(path, 2**40, gguf_bytes(counts=(2**14, 2**14))[:24])
    assert "has the key '' twice" in refusal(open_gguf, path, most_bytes=4 * MIB)


def test_the_number_of_values_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes([key(name, 9, array(0, 6, bytes(6))) for name in "bc"]))
    assert len(open_gguf(path).metadata) == 2
    monkeypatch.setattr("normscope.interop.files.gguf_file.MAX_VALUES", 11)
    with pytest.raises(WeightsError, match="its metadata has more than 11 values"):
        open_gguf(path)
    path.write_bytes(gguf_bytes([key(name, 9, array(8, 3, text("a") * 3)) for name in "bc"]))
    assert len(open_gguf(path).metadata) == 2
    monkeypatch.setattr("normscope.interop.files.gguf_file.MAX_STRINGS", 5)
    with pytest.raises(WeightsError, match="or 5 strings in arrays"):
        open_gguf(path)


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_a_special_file_is_refused(tmp_path: Path, kind: str) -> None:
    make, message = SPECIAL_FILES[kind]
    make(tmp_path / "a.gguf")
    assert message in refusal(open_gguf, tmp_path / "a.gguf")
