"""The user's own numbers: what is read, and what is refused."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normscope.errors import ArgumentTypeError, ConfigError, FileError, NormscopeError, ShapeError
from normscope.learning.inputs import as_tensor, read_tensor
from tests.learning.cases import tensor_file


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3,-4,0", [3.0, -4.0, 0.0]),
        (" [3, -4., .5] ", [3.0, -4.0, 0.5]),
        ("(1, 2)", [1.0, 2.0]),
        ("-3", [-3.0]),
        ("1e-3,", [0.001]),
        ("[[1,2,3],[4,5,6]]", [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        ("[1, 2], [3, 4]", [[1.0, 2.0], [3.0, 4.0]]),
    ],
)
def test_numbers_as_text(text: str, expected: list[Any]) -> None:
    found = read_tensor(text)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor(expected))


@given(st.lists(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=3, max_size=3), min_size=1, max_size=4))
def test_printed_lists_can_be_read(rows: list[list[float]]) -> None:
    assert torch.equal(read_tensor(str(rows)), torch.tensor(rows))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint64", ">f4", "<i2"])
def test_a_npy_file(dtype: str, tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    assert torch.equal(read_tensor(tensor_file(tmp_path, array)), torch.arange(6.0).reshape(2, 3))


def test_a_npy_file_in_fortran_order(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert torch.equal(read_tensor(tensor_file(tmp_path, array)), torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.uint8])
def test_tensors_of_other_dtypes(dtype: torch.dtype) -> None:
    assert torch.equal(as_tensor(torch.tensor([1, 2, 3]).to(dtype)), torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("rubbish", ConfigError, "'rubbish' is neither numbers nor a .npy file"),
        ("__import__('os').getcwd()", ConfigError, "is neither numbers"),
        ("[1, 2", ConfigError, "is neither numbers"),
        ("a\0b", ConfigError, "is neither numbers"),
        ("x" * 5000, ConfigError, "xxx...' is neither"),
        ("[" * 5000, ConfigError, "is neither numbers"),
        ("[" * 20 + "1" + "]" * 20, ShapeError, "nested more than 8 levels deep"),
        ("", ConfigError, "the input is empty"),
        ("  ", ConfigError, "the input is empty"),
        ("[]", ShapeError, "got an empty tensor of shape (0,)"),
        ("[[], []]", ShapeError, "shape (2, 0)"),
        ("[[1, 2], [3]]", ShapeError, "one part is of shape (2,), another of shape (1,)"),
        ("[[1, 2], 3]", ShapeError, "one part is of shape (2,), another a single number"),
        ("1,nan", ConfigError, "contains NaN or infinity"),
        ("[1, -Infinity]", ConfigError, "contains NaN or infinity"),
        ("1e999", ConfigError, "the values contain NaN or infinity"),
        ("1e39", ConfigError, "too large for float32"),
        (f"1{'0' * 400}", ConfigError, "too large for float32"),
        ("True, 1", ArgumentTypeError, "real numbers, but got 'True'"),
        ("1+2j", ArgumentTypeError, "real numbers"),
        ("'a', 'b'", ArgumentTypeError, "real numbers"),
        ("{1: 2}", ArgumentTypeError, "real numbers"),
        ("None", ArgumentTypeError, "real numbers"),
        ("nowhere.npy", FileError, "there is no file nowhere.npy"),
    ],
)
def test_invalid_text(text: str, error: type[NormscopeError], words: str) -> None:
    with pytest.raises(error) as caught:
        read_tensor(text)
    assert words in str(caught.value)
    assert "\nfix: " in str(caught.value)
    assert len(str(caught.value)) < 300


class Trap:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    path = tensor_file(tmp_path, np.array([Trap(sprung)], dtype=object))
    with pytest.raises(ConfigError, match="it contains Python objects, not numbers\nfix: "):
        read_tensor(path)
    assert not sprung.exists()


@pytest.mark.parametrize("name", ["half.npy", "empty.npy", "text.npy", "zip.npz", "huge.npy", "text"])
def test_invalid_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    whole = Path(tensor_file(tmp_path, np.arange(100.0), "whole.npy")).read_bytes()
    if name.startswith("half"):
        path.write_bytes(whole[:-50])
    elif name.startswith("zip"):
        np.savez(path, x=np.arange(3))
    elif name.startswith("huge"):
        path.write_bytes(whole.replace(b"(100,)", b"(9" + b"9" * 13 + b",)")[:128])
    else:
        path.write_text("" if name.startswith("empty") else "3, -4, 0")
    with pytest.raises(ConfigError, match=r"it is not a complete \.npy file\nfix: "):
        read_tensor(str(path))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "x.npy"
    folder.mkdir()
    with pytest.raises(FileError, match=r"cannot read .*\nfix: "):
        read_tensor(str(folder))


@pytest.mark.parametrize(
    "array",
    [
        np.array([True, False]),
        np.array(["a"]),
        np.array([1 + 2j]),
        np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        torch.tensor([True]),
        torch.tensor([1 + 2j]),
        OrderedDict(a=1),
    ],
    ids=str,
)
def test_values_that_are_not_real_numbers(array: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="real numbers"):
        as_tensor(array)


@pytest.mark.parametrize("value", [np.array([1.0, np.nan]), torch.tensor([float("inf")]), [1.0, float("nan")]])
def test_non_finite_values(value: Any) -> None:
    with pytest.raises(ConfigError, match="the values contain NaN or infinity\nfix: "):
        as_tensor(value)
