"""Safetensors files: the same tensors as the library reads, one at a time; every lie of a header is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from normscope.errors import WeightsError
from normscope.interop.files.safetensors_file import MAX_HEADER_BYTES, MAX_TENSORS, open_safetensors, open_sharded
from normscope.interop.files.tensor_file import TensorFile
from normscope.storage.tensor_spec import TensorSpec
from tests.interop.files.hostile import MIB, SPECIAL_FILES, refusal, safetensors_bytes, sparse
from tests.support import randn

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8)


def tensors_of_every_dtype() -> dict[str, torch.Tensor]:
    made = {f"{dtype}": randn(3, 5, seed=1).to(dtype) for dtype in FLOATS}
    made |= {f"{dtype}": torch.arange(7).to(dtype) for dtype in INTEGERS}
    return made | {"bool": torch.tensor([True, False]), "scalar": torch.tensor(2.5), "empty": torch.ones(0, 3)}


def test_the_same_tensors_as_the_library(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file(tensors_of_every_dtype(), path, {"format": "pt"})
    ours, theirs = open_safetensors(path), load_file(path)
    assert set(ours) == set(theirs)
    assert len(ours) == len(theirs)
    for name, expected in theirs.items():
        assert ours.specs[name] == TensorSpec.of(expected)
        assert ours[name].dtype == expected.dtype
        assert torch.equal(ours[name].flatten().view(torch.uint8), expected.flatten().view(torch.uint8)), name
    assert "missing" not in ours
    with pytest.raises(KeyError, match="missing"):
        ours["missing"]


def test_only_the_tensor_that_is_looked_up_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(3), "b": torch.zeros(5)}, path)
    read: list[TensorSpec] = []
    original = TensorFile.tensor

    def tensor(self: TensorFile, offset: int, spec: TensorSpec) -> torch.Tensor:
        read.append(spec)
        return original(self, offset, spec)

    monkeypatch.setattr(TensorFile, "tensor", tensor)
    tensors = open_safetensors(path)
    assert "a" in tensors
    assert read == []
    tensors["b"]
    assert read == [TensorSpec((5,), torch.float32)]


def test_data_without_alignment_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    data = torch.tensor([1.5, -2.0])
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    path.write_bytes(safetensors_bytes(header + b" " * (7 - len(header) % 8), data.numpy().tobytes()))
    tensor = open_safetensors(path)["a"]
    assert torch.equal(tensor, data)
    assert tensor.data_ptr() % 4 == 0


def test_bytes_that_are_no_bools_become_bools(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes({"a": entry("BOOL", [3], [0, 3])}, b"\0\1\2"))
    assert open_safetensors(path)["a"].view(torch.uint8).tolist() == [0, 1, 1]


def test_a_changed_tensor_does_not_change_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(3)}, path)
    open_safetensors(path)["a"].zero_()
    assert open_safetensors(path)["a"].sum() == 3


def test_a_file_that_shrinks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(3000)}, path)
    tensors = open_safetensors(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(WeightsError, match="was changed while it was read"):
        tensors["a"]


def write_sharded(folder: Path) -> dict[str, str]:
    """Two shards and their index, as in the cache of Hugging Face: links to blobs two folders up."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    weight_map = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}
    for shard in sorted(set(weight_map.values())):
        names = [name for name in weight_map if weight_map[name] == shard]
        save_file({name: torch.full((2,), float(ord(name))) for name in names}, blobs / f"blob-{shard}")
        (snapshot / shard).symlink_to(f"../../blobs/blob-{shard}")
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


def test_shards_of_a_cache_are_read(tmp_path: Path) -> None:
    weight_map = write_sharded(tmp_path)
    tensors = open_sharded(tmp_path / "snapshots" / "main")
    assert {name: tensors[name][0].item() for name in tensors} == {name: ord(name) for name in weight_map}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": "../x.safetensors"}, r"names '../x.safetensors', which is not a safetensors file beside it"),
        ({"a": "/etc/passwd"}, "names '/etc/passwd'"),
        ({"a": "..safetensors"}, "names '..safetensors'"),
        ({"a": "sub/x.safetensors"}, "names 'sub/x.safetensors'"),
        ({"a": "pytorch_model.bin"}, "names 'pytorch_model.bin'"),
        ({"a": "model-2.safetensors"}, "lists 'a' in model-[12].safetensors, but .* does not"),
        ({"d": "model-2.safetensors"}, "lists 'd' in model-2.safetensors, but .*model-2.safetensors does not"),
        ({"a": "model-3.safetensors"}, "model-3.safetensors does not exist"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    weight_map = write_sharded(tmp_path) | changes
    folder = tmp_path / "snapshots" / "main"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(WeightsError, match=message):
        open_sharded(folder)


def test_a_hostile_index_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    sparse(index, 10 * 2**30, b"{")
    assert "more than the limit" in refusal(lambda path: open_sharded(path.parent), index, most_bytes=MIB)
    index.write_bytes(b'{"a":' + b"[" * 10_000)
    assert "nested more than 64 levels" in refusal(lambda path: open_sharded(path.parent), index, most_bytes=4 * MIB)


def test_two_files_with_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"x": torch.ones(1)}, tmp_path / name)
    with pytest.raises(WeightsError, match="2 of the files have a tensor 'x'"):
        open_safetensors(tmp_path / "a", tmp_path / "b")


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


LIES: dict[str, tuple[bytes, str]] = {
    "short": (b"\0" * 7, "has only 7 bytes"),
    "header longer than the file": (safetensors_bytes({}, length=100), "would have 100 bytes, the file has 10"),
    "header of 2^64 bytes": (b"\xff" * 8 + b"{}", "18,446,744,073,709,551,615 bytes"),
    "header shorter than its JSON": (safetensors_bytes({"a": entry()}, bytes(8), length=20), "is not JSON"),
    "not an object": (safetensors_bytes([]), "expected `object`, got `array`"),
    "nested": (safetensors_bytes(b'{"a":' + b"[" * 10_000), "nested more than 64 levels"),
    "not UTF-8": (safetensors_bytes(b'{"\xff":1}'), "is not UTF-8"),
    "name twice": (
        safetensors_bytes(b'{"a":%s,"a":%s}' % ((json.dumps(entry()).encode(),) * 2), bytes(8)),
        "has the name 'a' twice",
    ),
    "no offsets": (safetensors_bytes({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)), "missing required field"),
    "unknown field": (safetensors_bytes({"a": entry() | {"x": 1}}, bytes(8)), "unknown field `x`"),
    "unknown dtype": (safetensors_bytes({"a": entry("F33")}, bytes(8)), "'a' of the unsupported dtype 'F33'"),
    "dtype of another size": (safetensors_bytes({"a": entry("F64")}, bytes(8)), "F64 of shape .2. needs 16 bytes"),
    "larger shape": (safetensors_bytes({"a": entry(shape=[3])}, bytes(8)), "needs 12 bytes"),
    "negative shape": (safetensors_bytes({"a": entry(shape=[-1, -2])}, bytes(8)), "the invalid shape"),
    "empty and absurd": (
        safetensors_bytes({"a": entry(shape=[0, 2**62], offsets=[0, 0])}),
        "the invalid shape .0, 4611686018427387904",
    ),
    "many dimensions": (safetensors_bytes({"a": entry(shape=[1] * 2000)}, bytes(8)), "the invalid shape"),
    "float shape": (safetensors_bytes({"a": entry(shape=[2.5])}, bytes(8)), "expected `int`"),
    "beyond the end": (safetensors_bytes({"a": entry()}, bytes(7)), "has 7 bytes of data, but its header describes 8"),
    "data left over": (safetensors_bytes({"a": entry()}, bytes(9)), "has 9 bytes of data, but its header describes 8"),
    "gap": (safetensors_bytes({"a": entry(offsets=[4, 12])}, bytes(12)), "'a' that leaves a gap before it"),
    "negative offset": (safetensors_bytes({"a": entry(offsets=[-8, 0])}), "'a' that overlaps"),
    "reversed offsets": (safetensors_bytes({"a": entry(offsets=[8, 0])}, bytes(8)), "at offsets 8 to 0"),
    "overlap": (safetensors_bytes({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)), "'b' that overlaps"),
    "same data twice": (safetensors_bytes({"a": entry(), "b": entry()}, bytes(8)), "'b' that overlaps"),
    "metadata with numbers": (safetensors_bytes({"__metadata__": {"a": 1}}), "expected `str`, got `int`"),
    "control characters": (safetensors_bytes({"\x1b[2J": entry("F33")}, bytes(8)), r"'\\x1b\[2J' of the unsupported"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(tmp_path: Path, lie: str) -> None:
    path = tmp_path / "a.safetensors"
    content, message = LIES[lie]
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        open_safetensors(path)
    refusal(open_safetensors, path)


def test_a_huge_header_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    sparse(path, 2**40, safetensors_bytes(b"{", length=MAX_HEADER_BYTES + 1))
    assert "the limit is 2,097,152" in refusal(open_safetensors, path, most_bytes=MIB)


def test_the_number_of_tensors_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for count in (MAX_TENSORS, MAX_TENSORS + 1):
        path.write_bytes(safetensors_bytes({f"{i}": entry("U8", [0], [0, 0]) for i in range(count)}))
        if count == MAX_TENSORS:
            assert len(open_safetensors(path)) == count
    assert "has 16,385 tensors, more than the limit of 16,384" in refusal(open_safetensors, path)


def test_a_terabyte_of_zeros_is_not_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    sparse(path, 2**40)
    assert "is not JSON" in refusal(open_safetensors, path, most_bytes=MIB)


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_a_special_file_is_refused(tmp_path: Path, kind: str) -> None:
    make, message = SPECIAL_FILES[kind]
    make(tmp_path / "model.safetensors")
    assert message in refusal(open_safetensors, tmp_path / "model.safetensors")
