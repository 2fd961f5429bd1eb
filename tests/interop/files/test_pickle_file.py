"""Pickles: plain values are read as pickle reads them, and nothing else is, least of all executed."""

import builtins
import pickle
import struct
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.errors import FileError
from normscope.interop.files import pickle_file
from normscope.interop.files.pickle_builders import PLAIN
from normscope.interop.files.pickle_file import MAX_BYTES, PickleReader, read_pickle
from normscope.storage.json_files import ContentError
from tests.interop.files.hostile import MIB, SPECIAL_FILES, refusal, sparse

META = {"vocab_size": 3, "itos": {0: "a", 1: "é"}, "stoi": {"a": 0, "é": 1}}
"""The form of nanoGPT's meta.pkl."""

keys = st.one_of(st.text(), st.binary(), st.integers(-(2**32), 2**32), st.booleans(), st.none())
scalars = st.one_of(keys, st.integers(-(2**100), 2**100), st.floats(allow_nan=False))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(keys, inner), st.tuples(inner, inner), st.sets(keys), st.frozensets(keys)
    ),
    max_leaves=8,
)


def read(data: bytes) -> Any:
    return PickleReader(PLAIN).read(data)


@settings(max_examples=40)
@given(value=values, protocol=st.integers(2, 5))
def test_plain_values_are_read_as_pickle_reads_them(value: Any, protocol: int) -> None:
    assert read(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        META,
        OrderedDict(b=1, a=[2.5, None]),
        defaultdict(dict, {"x": {}}),
        [np.float32(0.1), np.float64(-2.5), np.int64(2**40), np.bool_(True), np.array([7], ">i4")[0]],
        {("a", "b"): 1},
        [b"", b"\xff\0", bytes(300)],
    ],
)
def test_what_checkpoints_have(value: Any, protocol: int) -> None:
    found = read(pickle.dumps(value, protocol))
    assert found == value
    assert not isinstance(found, OrderedDict | defaultdict)


def test_a_value_in_two_places_stays_one() -> None:
    shared = [1]
    first, second = read(pickle.dumps((shared, shared)))
    assert first is second


class Call:
    """Pickled as a call."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.reduced = (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.reduced


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


SYSTEM = b"\x80\x04" + text("echo") + b"0" + text("os") + text("system") + b"\x93" + text("touch stolen") + b"\x85R."
MALICIOUS: dict[str, tuple[bytes, str]] = {
    "os.system": (pickle.dumps(Call(__import__("os").system, "touch stolen"), 2), "posix.system"),
    "eval": (pickle.dumps(Call(eval, "open('stolen', 'w')")), "builtins.eval"),
    "exec in protocol 0": (pickle.dumps(Call(exec, "open('stolen', 'w')"), 0), "builtins.exec"),
    "getattr chain": (pickle.dumps(Call(getattr, Call(__import__, "os"), "system")), "builtins.getattr"),
    "nested pickle": (pickle.dumps(Call(pickle.loads, pickle.dumps(Call(eval, "1")))), "_pickle.loads"),
    "names from the stack": (SYSTEM, "os.system"),
    "subprocess in a dict": (pickle.dumps({"a": [Call(__import__("subprocess").Popen, "x")]}), "subprocess.Popen"),
    "operator.attrgetter": (b"coperator\nattrgetter\n(X\x06\0\0\0systemtR.", "operator.attrgetter"),
    "INST": (b"(S'touch stolen'\nios\nsystem\n.", "os.system"),
    "OBJ": (b"(cos\nsystem\nS'touch stolen'\no.", "os.system"),
    "NEWOBJ": (b"\x80\x02cos\nsystem\n)\x81.", "os.system"),
    "NEWOBJ_EX": (b"\x80\x04cos\nsystem\n)}\x92.", "os.system"),
    "extension registry": (b"\x80\x02\x82\x01.", "the function with the extension code 1"),
    "extension registry, 4 bytes": (
        b"\x80\x02\x84\xff\xff\xff\x7f.",
        "the function with the extension code 2147483647",
    ),
    "torch.load again": (b"ctorch.serialization\nload\n(S'x'\ntR.", "torch.serialization.load"),
    "storage from bytes": (b"ctorch.storage\n_load_from_bytes\n(S'x'\ntR.", "torch.storage._load_from_bytes"),
    "numpy array of objects": (pickle.dumps(np.array([None], object)), "numpy._core.multiarray._reconstruct"),
    "attribute of an allowed name": (b"ccollections\nOrderedDict.__init__\n.", "collections.OrderedDict.__init__"),
    "dotted module": (b"\x80\x04" + text("collections.abc") + text("Mapping") + b"\x93.", "collections.abc.Mapping"),
    "control characters": (b"\x80\x04" + text("a\x1b[2J") + text("b\n") + b"\x93.", r"'a\x1b[2J.b\n'"),
    "names that are numbers": (b"\x80\x04K\x01K\x02\x93.", "1.2"),
}


@pytest.mark.parametrize("kind", MALICIOUS)
def test_a_pickle_that_calls_is_refused_by_name(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content, name = MALICIOUS[kind]
    path = tmp_path / "meta.pkl"
    path.write_bytes(content)
    message = refusal(read_pickle, path, most_bytes=MIB)
    assert f"meta.pkl asks for {name}; only tensors, containers, strings and numbers are read" in message
    assert not (tmp_path / "stolen").exists()


ALLOWED_BUT_WRONG: dict[str, tuple[bytes, str]] = {
    "calls a string": (b"\x80\x02" + text("os") + b")R.", "calls a str with a tuple"),
    "calls what a call returned": (b"\x80\x02ccollections\nOrderedDict\n)R)R.", "calls a dict with a tuple"),
    "arguments in a list": (b"\x80\x02ccollections\nOrderedDict\n]R.", "collections.OrderedDict with a list"),
    "arguments of OrderedDict": (b"\x80\x02ccollections\nOrderedDict\n]\x85R.", "OrderedDict with unsupported"),
    "arguments by name": (b"\x80\x04cbuiltins\ndict\n)}K\x01K\x02s\x92.", "builtins.dict with arguments by name"),
    "function as a value": (b"\x80\x02cbuiltins\ndict\n\x85.", "has the function builtins.dict as a value"),
    "state of a list": (b"\x80\x02]}" + text("a") + b"K\x01sb.", "sets attributes of a list"),
    "state of a dict": (b"\x80\x02}}" + text("a") + b"K\x01sb.", "sets attributes of a dict"),
    "state of a function": (b"\x80\x02cbuiltins\ndict\n}b.", "sets attributes of builtins.dict"),
    "appends to a dict": (b"\x80\x02}K\x01a.", "appends to a dict"),
    "appends to a function": (b"\x80\x02cbuiltins\ndict\nK\x01a.", "appends to builtins.dict"),
    "item of a list": (b"\x80\x02]K\x01K\x01s.", "sets an item of a list"),
    "adds to a list": (b"\x80\x04](K\x01\x90.", "adds an item to a list"),
    "numpy object": (b"\x80\x02cnumpy\ndtype\n" + text("O8") + b"\x85R.", "unsupported numpy dtype 'O8'"),
    "codec": (b"\x80\x02c_codecs\nencode\n" + text("") + text("zlib") + b"\x86R.", "unsupported encoding 'zlib'"),
    "persistent id": (b"\x80\x02K\x01Q.", "asks for an object outside of the pickle"),
    "out-of-band buffer": (b"\x80\x05\x97.", "unsupported instruction NEXT_BUFFER"),
    "list as a key": (b"\x80\x02}]K\x01s.", "uses a list as a key"),
    "float as a key": (pickle.dumps({0.5: 1}), "uses a float as a key"),
    "long key": (pickle.dumps({2**61 - 1: 1}), "uses an integer of more than 32 bits as a key"),
    "tuple of integers as a key": (pickle.dumps({(1, 2): 1}), "uses a tuple as a key"),
    "nothing": (b"", "pickle exhausted before seeing STOP"),
    "no STOP": (b"\x80\x02K\x01", "pickle exhausted before seeing STOP"),
    "empty stack": (b"\x80\x02.", "IndexError"),
    "pops too much": (b"\x80\x0200.", "IndexError"),
    "escape in a string": (b"S'\\w'\n0]\x81.", "IndexError"),
    "unknown memo": (b"\x80\x02h\x05.", "KeyError"),
    "unknown instruction": (b"\x80\x02\xff.", "opcode .* unknown"),
    "odd items": (b"\x80\x02}(K\x01u.", "ValueError"),
    "a list in itself": (b"\x80\x02]q\0h\0a.", "has a container that contains itself"),
    "a dict in itself through a tuple": (b"\x80\x02}q\0K\x01h\0\x85s.", "has a container that contains itself"),
    "string longer than the file": (b"\x80\x02X\xff\xff\xff\x7fabc.", "ValueError"),
    "string of 2^63 bytes": (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7fabc.", "ValueError"),
    "text of a long integer": (b"I" + b"9" * 5000 + b"\n.", "ValueError"),
    "memo index": (b"\x80\x02]p9999999999\n.", "remembers a value as number 9,999,999,999"),
}


@pytest.mark.parametrize("kind", ALLOWED_BUT_WRONG)
def test_an_invalid_pickle_is_refused(tmp_path: Path, kind: str) -> None:
    content, message = ALLOWED_BUT_WRONG[kind]
    path = tmp_path / "meta.pkl"
    path.write_bytes(content)
    with pytest.raises(FileError, match=message):
        read_pickle(path)
    refusal(read_pickle, path)


def stored(data: bytes) -> bytes:
    return b"X" + len(data).to_bytes(4, "little") + data


TWICE = b"h\0h\0\x86q\0"
"""Replaces the value in memo 0 by a pair of it."""
BOMBS: dict[str, tuple[bytes, str]] = {
    "doubled tuples": (b"\x80\x02)q\0" + TWICE * 60 + b".", "describes more than 4,194,304 values"),
    "doubled lists": (b"\x80\x02]q\0" + b"](h\0h\0eq\0" * 60 + b".", "describes more than 4,194,304 values"),
    "key of doubled tuples": (b"\x80\x02)q\0" + TWICE * 60 + b"}h\0K\x01s.", "uses a tuple as a key"),
    "deep": (b"\x80\x02" + b"]" * 5_000 + b"a" * 4_999 + b".", "nested more than 64 levels"),
    "marks": (b"\x80\x02" + b"(" * 5_000 + b".", "IndexError"),
    "memo of 2^32 entries": (b"\x80\x02]r\xff\xff\xff\xff0h\0.", "KeyError"),
    "a text encoded many times": (
        b"\x80\x02c_codecs\nencode\nq\0"
        + stored(b"a" * MIB)
        + b"q\1"
        + stored(b"latin1")
        + b"q\2("
        + b"h\0h\1h\2\x86R" * 200
        + b"t.",
        "calls _codecs.encode with too many values",
    ),
    "a set made many times": (
        b"\x80\x02](" + b"K\1" * 20_000 + b"eq\0cbuiltins\nset\nq\1" + b"h\1h\0\x85R0" * 20_000 + b".",
        "calls builtins.set with too many values",
    ),
    "a tuple hashed many times": (
        b"\x80\x02(" + stored(b"a") * 1000 + b"tq\0}h\0K\1s.",
        "uses a tuple of 1,000 strings as a key",
    ),
    "a list in many places": (
        b"\x80\x02](" + b"K\1" * 100_000 + b"eq\0](" + b"h\0" * 100_000 + b"e.",
        "describes more than 4,194,304 values",
    ),
    "tuples in tuples": (b"\x80\x02)" + b"\x85" * 900_000 + b".", "makes more than 131,072 containers"),
    "long integer": (b"\x80\x02\x8b\0\0\x10\0" + b"\1" * MIB + b".", "has an integer of"),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused_in_little_memory(tmp_path: Path, kind: str) -> None:
    content, message = BOMBS[kind]
    path = tmp_path / "meta.pkl"
    path.write_bytes(content)
    assert message in refusal(read_pickle, path, most_bytes=64 * MIB)


def test_the_number_of_instructions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_file, "MAX_INSTRUCTIONS", 100)
    with pytest.raises(ContentError, match="has more than 100 instructions"):
        read(b"N0" * 50 + b"N.")
    assert read(b"N0" * 49 + b"N.") is None


def test_a_terabyte_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "meta.pkl"
    sparse(path, 2**40, b"\x80\x02")
    assert f"more than the limit of {MAX_BYTES:,}" in refusal(read_pickle, path, most_bytes=MIB)


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_a_special_file_is_refused(tmp_path: Path, kind: str) -> None:
    make, message = SPECIAL_FILES[kind]
    make(tmp_path / "meta.pkl")
    assert message in refusal(read_pickle, tmp_path / "meta.pkl")


def test_every_builder_of_the_table_is_called_only_by_name() -> None:
    """No entry of the table is a function of Python that could call another one."""
    assert all(not hasattr(builtins, name.rpartition(".")[2]) or "builtins" in name for name in PLAIN)
    assert not any(function in vars(builtins).values() for function in PLAIN.values())
