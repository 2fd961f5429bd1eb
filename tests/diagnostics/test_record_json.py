"""Records in files: the same again, whatever the figures are; and what is no record is refused by name."""

import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import LossRecord, ModuleRecord, StepRecord, XrayRecord
from normscope.diagnostics.record_json import load_record, save_record
from normscope.diagnostics.stats.tensors import TensorStats, UnitStats
from normscope.errors import FileError
from normscope.storage.files import with_checksum
from normscope.storage.json_files import FileFormat


@functools.cache
def real_record() -> XrayRecord:
    """All that a record can hold: joins, attention, norms, units, a step, and numbers that are not finite."""
    model = nn.Sequential(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), nn.BatchNorm1d(4), nn.Linear(8, 3)
    )
    model.get_parameter("2.bias").data[0] = math.inf
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with Xray(model, label="a real one") as x:
        torch.nn.functional.cross_entropy(model(torch.randn(2, 4, 8))[:, 0], torch.tensor([1, 2])).backward()
        optimiser.step()
    return x.record


def test_a_real_record_comes_back_the_same(tmp_path: Path) -> None:
    record = real_record()
    save_record(record, tmp_path / "xray.json")
    # Not == alone: a number that is none is not even itself.
    assert repr(load_record(tmp_path / "xray.json")) == repr(record)
    assert any(module.attention for module in record.modules)
    assert any(module.norm for module in record.modules)
    assert record.steps


def test_a_finite_record_is_equal(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    with Xray(model) as x:
        model(torch.randn(3, 4)).sum().backward()
    save_record(x.record, tmp_path / "xray.json")
    assert load_record(tmp_path / "xray.json") == x.record


FLOATS = st.one_of(st.floats(allow_nan=False), st.just(math.nan))


@given(st.lists(FLOATS, min_size=8, max_size=8), st.text(), st.integers(0, 2**62))
def test_any_figures_and_names_come_back(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[float], name: str, count: int
) -> None:
    signal = TensorStats(count, *numbers)
    units = UnitStats(3, 4, 0, None, numbers[0], ((1, numbers[1], numbers[2]),))
    module = ModuleRecord(name, "Linear", order=0, output=signal, units=units, fingerprint=tuple(numbers[:4]))
    record = XrayRecord(
        name, (module,), 1, 0, steps=(StepRecord("SGD", numbers[3], None, None),), losses=(LossRecord(numbers[4], 2),)
    )
    path = tmp_path_factory.mktemp("any") / "xray.json"
    save_record(record, path)
    assert load_record(path) == record  # math.nan is one object, so here it is itself


def test_it_is_plain_json_with_a_module_a_line(tmp_path: Path) -> None:
    record = real_record()
    save_record(record, tmp_path / "xray.json")
    text = (tmp_path / "xray.json").read_text()

    def refuse(name: str) -> None:
        raise AssertionError(name)

    content = json.loads(text, parse_constant=refuse)  # NaN and Infinity are not JSON
    assert (content["format"], content["version"]) == ("normscope x-ray", 1)
    assert len(text.splitlines()) == len(record.modules) + 2
    assert '"nan"' in text


def _attention(content: Any) -> Any:
    return next(module["attention"] for module in content["modules"] if "attention" in module)


def changed(tmp_path: Path, change: Any) -> Path:
    path = tmp_path / "xray.json"
    save_record(real_record(), path)
    content = json.loads(path.read_text())
    del content["checksum"]
    change(content)
    path.write_text(json.dumps(with_checksum(content)))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("format"), "is not an x-ray: its format is not"),
        (lambda c: c.update(version=2), r"has format 2, but this .* reads format 1\nfix: update normscope"),
        (lambda c: c.update(version="1"), "has no valid format number: '1'"),
        (lambda c: c.pop("version"), "has no valid format number: None"),
        (lambda c: c.update(version=0), r"has format 0, but this .* reads format 1\nfix: use the version .* wrote it"),
        (lambda c: c.pop("model"), "missing field model"),
        (lambda c: c.update(color="red"), "unknown field color"),
        (lambda c: c.update(batches=True), "batches is True, expected an integer"),
        (lambda c: c.update(batches=1.5), "batches is 1.5, expected an integer"),
        (lambda c: c.update(model=None), "model is None, expected a string"),
        (lambda c: c.update(modules={}), "modules is dict, expected a list"),
        (lambda c: c["modules"].append(3), r"modules\[\d+\] is 3, expected an object"),
        (lambda c: c["modules"][0]["output"].update(rms="big"), r"\[0\].output.rms is 'big', expected a number"),
        (lambda c: c["modules"][0]["output"].update(rms=10**400), "has an integer of more than 64 bits: 10000"),
        (lambda c: c["modules"][0]["output"].pop("mean"), r"missing field modules\[0\].output.mean"),
        (lambda c: c["modules"][0].update(is_function=0), r"is_function is 0, expected true or false"),
        (lambda c: c["modules"][0].update(input_shapes=[[1, "2"]]), r"modules\[0\].input_shapes\[0\]\[1\] is '2'"),
        (lambda c: c["modules"][0].update(calls=2**63), r"modules\[0\].calls is too large"),
        (lambda c: c["modules"][0].update(fingerprint=[1.0, 2.0]), r"modules\[0\].fingerprint has 2 items, expected 4"),
        (lambda c: _attention(c).update(heads=0), r"attention.heads is 0, but entropy has"),
        (lambda c: c["steps"][0].update(when=1), r"unknown field steps\[0\].when"),
        (lambda c: c["modules"][0].update(features=None), None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, change: Any, words: str | None) -> None:
    path = changed(tmp_path, change)
    if words is None:
        load_record(path)
    else:
        with pytest.raises(FileError, match=words) as refused:
            load_record(path)
        assert str(path) in str(refused.value)
        assert "\nfix: " in str(refused.value)


def test_a_record_of_an_older_format_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = changed(tmp_path, lambda c: c.update(passes=c.pop("batches")))
    with pytest.raises(FileError, match="unknown field passes"):
        load_record(path)

    def rename(content: dict[str, Any]) -> dict[str, Any]:
        return {"batches" if name == "passes" else name: value for name, value in content.items()}

    monkeypatch.setattr("normscope.diagnostics.record_json.RECORD_FORMAT", FileFormat(2, {1: rename}))
    assert repr(load_record(path)) == repr(real_record())


def test_missing_fields_get_their_defaults(tmp_path: Path) -> None:
    assert real_record().label
    assert real_record().losses
    path = changed(tmp_path, lambda c: (c.pop("label"), c.pop("losses"), c["modules"][0].pop("flops")))
    record = load_record(path)
    assert (record.label, record.losses, record.modules[0].flops) == ("", (), None)


def test_a_figure_that_was_altered_is_found(tmp_path: Path) -> None:
    path = tmp_path / "xray.json"
    save_record(real_record(), path)
    content = json.loads(path.read_text())
    content["modules"][0]["calls"] = 7
    path.write_text(json.dumps(content))
    with pytest.raises(FileError, match="its checksum is wrong"):
        load_record(path)


def test_one_that_is_cut_short_says_so_wherever_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "xray.json"
    save_record(real_record(), path)
    whole = path.read_bytes()
    for length in range(40, len(whole) - 3, len(whole) // 20):
        path.write_bytes(whole[:length])
        with pytest.raises(FileError, match="is not JSON"):
            load_record(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON"),
        (b"hello", "is not JSON"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"[]", "is not valid: expected `object`, got `array`"),
        (b"{}", "is not an x-ray"),
        (b'{"format": NaN}', "has NaN, which JSON does not allow"),
        (b"[" * 100_000, "is nested more than 64 levels deep"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "xray.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=words):
        load_record(path)


def test_a_file_that_is_not_there_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist"):
        load_record(tmp_path / "nothing.json")
    with pytest.raises(FileError, match="cannot read "):
        load_record(tmp_path)
