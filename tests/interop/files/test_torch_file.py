"""Files of torch.save: what torch.load returns, mapped into memory; malicious archives are refused."""

import gc
import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.interop.files.torch_file import read_torch_file
from tests.interop.files.hostile import MIB, SPECIAL_FILES, refusal, sparse
from tests.interop.files.test_pickle_file import MALICIOUS, Call
from tests.interop.files.test_safetensors_file import tensors_of_every_dtype
from tests.support import randn


def saved(folder: Path, value: Any, **settings: Any) -> Path:
    torch.save(value, folder / "ckpt.pt", **settings)
    return folder / "ckpt.pt"


def same(ours: Any, theirs: Any) -> bool:
    """Whether two values have the same structure and tensors."""
    if isinstance(theirs, torch.Tensor):
        return ours.dtype == theirs.dtype and ours.stride() == theirs.stride() and torch.equal(ours, theirs.detach())
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[name], theirs[name]) for name in theirs)
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return type(ours) is type(theirs) and bool(ours == theirs)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux shows what is mapped")
def test_the_file_is_unmapped_with_its_last_tensor(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": torch.ones(3), "b": torch.ones(3)})
    content = read_torch_file(path)
    assert str(path) in Path("/proc/self/maps").read_text()
    del content["a"]
    assert content["b"].sum() == 3
    del content["b"]
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()


def nanogpt_checkpoint() -> dict[str, Any]:
    """What nanoGPT's train.py saves."""
    model = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=False)
    model(torch.tensor([1, 2])).square().mean().backward()
    optimizer.step()
    return {
        "model": {f"_orig_mod.{name}": tensor for name, tensor in model.state_dict().items()},
        "optimizer": optimizer.state_dict(),
        "model_args": {"n_layer": 1, "bias": False, "vocab_size": 7, "dropout": 0.0},
        "iter_num": 2000,
        "best_val_loss": torch.tensor(1.25),
        "config": {"out_dir": "out", "compile": True, "learning_rate": 1e-3, "init_from": None},
    }


@pytest.mark.parametrize("protocol", [2, 4])
def test_everything_of_a_nanogpt_checkpoint_is_read(tmp_path: Path, protocol: int) -> None:
    path = saved(tmp_path, nanogpt_checkpoint(), pickle_protocol=protocol)
    found = read_torch_file(path)
    assert same(found, torch.load(path, weights_only=False))
    embedding, head = found["model"].values()
    assert embedding.untyped_storage().data_ptr() == head.untyped_storage().data_ptr()


def test_a_state_dict_and_tensors_of_every_dtype_are_read(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    values = {"state": model.state_dict(), "parameters": list(model.parameters()), **tensors_of_every_dtype()}
    path = saved(tmp_path, values)
    assert same(read_torch_file(path), torch.load(path, weights_only=True))


def test_views_share_their_storage(tmp_path: Path) -> None:
    table = randn(6, 5, seed=1)
    path = saved(tmp_path, [table, table.t(), table[2:4, 1:], table.flatten()[::7], table[5, 4]])
    found = read_torch_file(path)
    assert same(found, torch.load(path, weights_only=True))
    found[0][2, 1] = 100
    assert found[1][1, 2] == found[2][0, 0] == 100
    assert read_torch_file(path)[0][2, 1] != 100  # the file is as it was


def test_values_beside_tensors(tmp_path: Path) -> None:
    value = [torch.Size([2, 3]), torch.bfloat16, torch.device("cuda:1"), torch.device("cpu"), {1, 2}, 10**25, b"\xff"]
    assert same(read_torch_file(saved(tmp_path, value)), value)


class FromPickle(io.BytesIO):
    """An archive as torch.save writes it, with another pickle and other members."""

    def __init__(
        self, pickled: bytes, members: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED
    ) -> None:
        super().__init__()
        with zipfile.ZipFile(self, "w", method) as archive:
            for name, data in {"a/data.pkl": pickled, "a/byteorder": b"little", **(members or {})}.items():
                archive.writestr(name, data)


def storage(kind: str = "FloatStorage", key: str = "0", count: Any = 4) -> bytes:
    """The instructions for a storage."""
    names = [b"X" + struct.pack("<I", len(word)) + word.encode() for word in ("storage", key, "cpu")]
    return (
        b"("
        + names[0]
        + b"ctorch\n"
        + kind.encode()
        + b"\n"
        + names[1]
        + names[2]
        + pickle.dumps(count, 2)[2:-1]
        + b"tQ"
    )


def tensor(offset: Any = 0, shape: Any = (2, 2), stride: Any = (2, 1), **of: Any) -> bytes:
    """The pickle of a tensor."""
    place = b"".join(pickle.dumps(value, 2)[2:-1] for value in (offset, shape, stride))
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage(**of) + place + b"\x89}tR."


DATA = {"a/data/0": bytes(16)}


def test_the_pickle_of_these_tests_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pt"
    path.write_bytes(FromPickle(tensor(), DATA).getvalue())
    assert torch.equal(read_torch_file(path), torch.zeros(2, 2))


LIES: dict[str, tuple[bytes, str]] = {
    "offset": (tensor(offset=1), "up to element 4 in a storage of 4"),
    "negative offset": (tensor(offset=-1), "with unsupported arguments: a shape of"),
    "shape": (tensor(shape=(3, 2)), "up to element 5"),
    "negative shape": (tensor(shape=(-1, 2)), "with unsupported arguments"),
    "boolean shape": (tensor(shape=(True, 2)), "with unsupported arguments"),
    "shape of 2^60": (tensor(shape=(2**60, 2)), "with unsupported arguments"),
    "many dimensions": (tensor(shape=(1,) * 9, stride=(1,) * 9), "with unsupported arguments"),
    "stride": (tensor(stride=(3, 1)), "up to element 4"),
    "negative stride": (tensor(stride=(-2, 1)), "with unsupported arguments"),
    "fewer strides": (tensor(stride=(1,)), "with unsupported arguments"),
    "stride 0": (tensor(shape=(2**30, 2), stride=(0, 0)), "a tensor of shape"),
    "shape as text": (tensor(shape="ab"), "with unsupported arguments"),
    "storage too small": (tensor(count=8), "has 16 bytes in data/0, but 8 elements of torch.float32 need 32"),
    "storage too large": (tensor(count=2), "has 16 bytes in data/0, but 2 elements"),
    "storage of another dtype": (tensor(kind="DoubleStorage"), "4 elements of torch.float64 need 32"),
    "negative storage": (tensor(count=-4), "names an invalid storage"),
    "missing storage": (tensor(key="1"), "has no member data/'1'"),
    "storage outside": (tensor(key="../data.pkl"), "has no member"),
    "storage that is no storage": (b"\x80\x02" + b"K\x01Q.", "names an invalid storage: 1"),
    "storage of a dict": (tensor(kind="float32"), "names an invalid storage"),
    "one storage, two dtypes": (
        b"\x80\x02" + storage() + storage("IntStorage") + b"\x86.",
        "names the storage '0' twice with different types",
    ),
    "tensor of a string": (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(U\1aK\0))\x89}tR.", "with unsupported arg"),
    "dtype of a string": (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v3\n(" + storage() + b"K\0K\x01\x85K\x01\x85\x89}U\1atR.",
        "with unsupported arguments",
    ),
    "device": (b"\x80\x02ctorch\ndevice\nU\3A:x\x85R.", "an invalid device 'A:x'"),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_tensor_outside_of_its_storage_is_refused(tmp_path: Path, kind: str) -> None:
    pickled, message = LIES[kind]
    path = tmp_path / "ckpt.pt"
    path.write_bytes(FromPickle(pickled, DATA).getvalue())
    assert message in refusal(read_torch_file, path, most_bytes=MIB)


@pytest.mark.parametrize("kind", MALICIOUS)
def test_a_malicious_pickle_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    pickled, name = MALICIOUS[kind]
    path = tmp_path / "ckpt.pt"
    path.write_bytes(FromPickle(pickled).getvalue())
    assert f"ckpt.pt asks for {name}; " in refusal(read_torch_file, path, most_bytes=MIB)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
        ([Call(print, "x")], "builtins.print"),
        (torch.zeros(2, device="meta"), "torch._utils._rebuild_meta_tensor_no_storage"),
        (Path("x"), "pathlib.PosixPath"),
    ],
)
def test_what_is_not_plain_is_refused_by_name(tmp_path: Path, value: Any, name: str) -> None:
    assert f"asks for {name}; " in refusal(read_torch_file, saved(tmp_path, value))


GOOD = FromPickle(tensor(), DATA).getvalue()
ENTRY_OF_DATA = GOOD.rindex(b"PK\1\2")
END = GOOD.rindex(b"PK\5\6")


def patched(at: int, form: str, *numbers: int) -> bytes:
    new = bytearray(GOOD)
    struct.pack_into(form, new, at, *numbers)
    return bytes(new)


ARCHIVES: dict[str, tuple[bytes, str]] = {
    "compressed": (FromPickle(tensor(), DATA, zipfile.ZIP_DEFLATED).getvalue(), "'a/data.pkl' is compressed"),
    "bomb": (
        FromPickle(tensor(), {"a/data/0": bytes(20 * MIB)}, zipfile.ZIP_DEFLATED).getvalue(),
        "is compressed, which torch.save never does",
    ),
    "encrypted": (patched(ENTRY_OF_DATA + 8, "<H", 1), "'a/data/0' is encrypted"),
    "wrong size": (patched(ENTRY_OF_DATA + 24, "<I", 2**31), "'a/data/0' is compressed"),
    "both sizes wrong": (patched(ENTRY_OF_DATA + 20, "<2I", 2**31, 2**31), "reaches into the directory"),
    "no 64-bit sizes": (patched(ENTRY_OF_DATA + 20, "<2I", 2**32 - 1, 2**32 - 1), "'a/data/0' has no sizes"),
    "overlap": (patched(ENTRY_OF_DATA + 42, "<I", 0), "overlaps another one"),
    "header elsewhere": (patched(ENTRY_OF_DATA + 42, "<I", 2**31), "bytes at offset 2,147,483,648 are needed"),
    "other name": (patched(ENTRY_OF_DATA + 46, "<B", ord("b")), "the header of its member 'b/data/0' disagrees"),
    "long name": (patched(ENTRY_OF_DATA + 28, "<H", 65535), "its directory is damaged"),
    "other disk": (patched(ENTRY_OF_DATA + 34, "<H", 1), "a part of a split archive"),
    "entry damaged": (patched(ENTRY_OF_DATA, "<B", 0), "its directory is damaged"),
    "fewer entries": (patched(END + 8, "<2H", 2, 2), "its directory lists 3 members instead of 2"),
    "many members": (patched(END + 8, "<2H", 20_001, 20_001), "has 20,001 members, more than the limit of 20,000"),
    "more entries": (patched(END + 8, "<2H", 1, 1), "its directory lists 2 members instead of 1"),
    "many disks": (patched(END + 4, "<H", 1), "a part of a split archive"),
    "directory too long": (patched(END + 12, "<I", 2**31), "does not end at"),
    "directory elsewhere": (patched(END + 16, "<I", 0), "does not end at"),
    "data behind": (GOOD + b"more", "data follows its directory"),
    "truncated": (GOOD[:-30], "it has no directory at its end"),
    "only the start": (GOOD[:40], "it has no directory at its end"),
    "checksum": (GOOD.replace(b"tensor_v2", b"tensor_v3"), "the checksum of data.pkl is wrong"),
    "name twice": (
        FromPickle(tensor(), {"a/data/0": b"", "a/data/1": b""}).getvalue().replace(b"a/data/1", b"a/data/0"),
        "two members have the name 'a/data/0'",
    ),
    "absolute name": (FromPickle(tensor(), {"/etc/passwd": b""}).getvalue(), "a member has the name '/etc/passwd'"),
    "name outside": (FromPickle(tensor(), {"a/../../x": b""}).getvalue(), "a member has the name 'a/../../x'"),
    "backslashes": (FromPickle(tensor(), {"a\\..\\x": b""}).getvalue(), "a member has the name"),
    "name with an escape": (FromPickle(tensor(), {"a/\x1b[2J": b""}).getvalue(), r"a member has the name 'a/\x1b[2J'"),
    "two pickles": (FromPickle(tensor(), {"b/data.pkl": b"N."}).getvalue(), "was not written by torch.save"),
    "TorchScript": (FromPickle(tensor(), {"a/constants.pkl": b""}).getvalue(), "is a TorchScript program"),
    "big-endian": (FromPickle(tensor(), {"a/byteorder": b"big"}).getvalue(), "has the byte order b'big'"),
    "long byte order": (FromPickle(tensor(), {"a/byteorder": bytes(2000)}).getvalue(), "a byteorder of 2,000 bytes"),
    "another zip": (b"PK\3\4" + bytes(100), "it has no directory at its end"),
    "empty zip": (b"PK\5\6" + bytes(18), "is no zip file"),
    "a pickle": (pickle.dumps({"a": 1}), "is a plain pickle, or was saved in torch's old format"),
    "a tar file": (bytes(257) + b"ustar" + bytes(300), "is a tar archive, torch's oldest format"),
    "text": (b"version https://git-lfs.github.com/spec/v1", "is no zip file"),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_that_lies_is_refused(tmp_path: Path, kind: str) -> None:
    content, message = ARCHIVES[kind]
    path = tmp_path / "ckpt.pt"
    path.write_bytes(content)
    assert message in refusal(read_torch_file, path, most_bytes=MIB)


def test_the_old_format_is_refused_by_name(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": torch.ones(1)}, _use_new_zipfile_serialization=False)
    message = refusal(read_torch_file, path)
    assert "was saved in torch's old format" in message
    assert "fix: load it with torch.load(path, weights_only=True), and save it again" in message


def test_a_huge_directory_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pt"
    size, length = 2**33, 2**32 - 2
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, length, size - 22 - length, 0)
    sparse(path, size, b"PK\3\4", end)
    assert "its directory has 4,294,967,294 bytes, more than the limit" in refusal(
        read_torch_file, path, most_bytes=MIB
    )


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_a_special_file_is_refused(tmp_path: Path, kind: str) -> None:
    make, message = SPECIAL_FILES[kind]
    make(tmp_path / "ckpt.pt")
    assert message in refusal(read_torch_file, tmp_path / "ckpt.pt")
