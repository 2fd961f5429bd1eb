"""Models that others write: checkpoints, compilation, several processes, odd outputs, shared parts."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import normscope
from tests.training.forked import finish, start_forked


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.reentrant = nn.Linear(4, 4), reentrant
        self.part = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.reentrant is None:
            plain: Tensor = self.part(x)
            return plain
        again: Tensor = checkpoint(self.part, x, use_reentrant=self.reentrant)
        return again


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_computes_again_counts_once(reentrant: bool) -> None:
    records = []
    for kind in (None, reentrant):
        torch.manual_seed(0)
        model = Checkpointed(kind)
        inputs = torch.randn(3, 4)
        with normscope.xray(model) as x:
            model(inputs).square().sum().backward()
        records.append(x.record)
    plain, again = records
    for name in ("first", "part", "part.0", "part.1"):
        assert (again[name].calls, again[name].output) == (1, plain[name].output)
        assert again[name].gradient == plain[name].gradient, name
        assert again[name].flops == plain[name].flops


@pytest.mark.skipif(sys.platform == "win32", reason="torch.compile wants a compiler")
@pytest.mark.parametrize("way", ["wrapped", "in place"])
def test_a_compiled_model_is_seen_as_it_is_written(way: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    inputs = torch.randn(3, 4)
    if way == "wrapped":
        compiled: Any = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
        compiled = model
    before = compiled(inputs)
    with normscope.xray(compiled) as x:
        compiled(inputs).sum().backward()
    assert [module.name for module in x.record.ran] == ["", "0", "1", "2"]
    assert x.record["1"].gradient is not None
    assert x.record.notices == ("compiled code ran in eager mode during the x-ray",)
    torch.testing.assert_close(compiled(inputs), before)


def take_xray_under_ddp(folder: Path) -> None:
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    with normscope.xray(model) as x:
        model(torch.randn(3, 4)).sum().backward()
    ran = [module.name for module in x.record.ran]
    found = [ran, x.record["0"].parameters[0].gradient is not None, x.record.notices[0]]
    (folder / "found.json").write_text(json.dumps(found))
    os._exit(0)


def test_under_ddp(tmp_path: Path) -> None:
    """In a process of its own, which ends at once: to take Gloo's threads down can wait for ever for Python's lock."""
    finish(start_forked(take_xray_under_ddp, tmp_path))
    ran, has_gradient, notice = json.loads((tmp_path / "found.json").read_text())
    assert (ran, has_gradient) == (["", "0", "1"], True)
    assert "this process" in notice


@dataclasses.dataclass
class Output:
    loss: Tensor
    logits: Tensor
    extra: dict[str, Any]


class Odd(nn.Module):
    """Keyword arguments, a dataclass out, a dict in between, and parts that never run or are never called."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(7, 8), Inner(), nn.Linear(8, 7, bias=False)
        self.head.weight = self.table.weight
        self.never, self.borrowed = nn.Linear(2, 2), nn.Linear(8, 8)
        self.whole = nn.Identity()

    def forward(self, *, tokens: Tensor) -> Output:
        x = self.inner(hidden=self.table(tokens), flags=["a", None, 3])["hidden"][0]
        x = F.linear(x, self.borrowed.weight)
        logits = self.head(x)
        return Output(F.cross_entropy(logits.flatten(0, 1), tokens.flatten()), logits, {"places": self.whole(tokens)})


class Inner(nn.Module):
    def forward(self, *, hidden: Tensor, flags: list[Any]) -> dict[str, Any]:
        return {"hidden": (torch.tanh(hidden), hidden.mean()), "flags": flags}


def test_odd_inputs_and_outputs() -> None:
    model = Odd()
    tokens = torch.randint(7, (2, 5))
    with normscope.xray(model) as x:
        model(tokens=tokens).loss.backward()
    record = x.record
    assert record[""].output_shapes == ((), (2, 5, 7), (2, 5))
    assert record[""].output is not None
    assert record[""].output.count == 2 * 5 * 7  # the logits, and not the loss before them
    assert record["inner"].input_shapes == ((2, 5, 8),)
    assert record["inner.tanh()"].saturated is not None
    assert record["head"].parameters[0].alias_of == "table.weight"
    assert (record["never"].order, record["never"].parameters[0].gradient) == (None, None)
    assert record["borrowed"].order is None
    assert record["borrowed"].parameters[0].gradient is not None  # its weight was used without calling it
    assert record["whole"].output is None  # whole numbers have no signal
    assert record["whole"].output_shapes == ((2, 5),)
    assert record.parameter_count == 56 + 6 + 72


def test_an_lstm_and_a_list_of_modules() -> None:
    model: Any = nn.ModuleDict({"rnn": nn.LSTM(3, 5), "heads": nn.ModuleList([nn.Linear(5, 2), nn.Linear(5, 2)])})
    with normscope.xray(model) as x:  # the whole is never called
        y, _ = model["rnn"](torch.randn(6, 2, 3))
        (model["heads"][0](y).sum() + model["heads"][1](y).sum()).backward()
    assert x.record["rnn"].output_shapes == ((6, 2, 5), (1, 2, 5), (1, 2, 5))
    assert x.record["heads.1"].fed_by == ("rnn",)


def test_inference_mode_half_types_and_float64() -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()).to(dtype)
        with normscope.xray(model) as x, torch.inference_mode():
            model(torch.randn(3, 4, dtype=dtype))
        assert x.record["1"].dtype == str(dtype).removeprefix("torch.")
        assert x.record["2"].output is not None


class Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x - x)


class Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x * 0)


def makers(model: nn.Module, x: Tensor) -> tuple[list[str], list[str]]:
    with normscope.xray(model) as seen:
        model(x).sum().backward()
    modules = seen.record.modules
    return [m.name for m in modules if m.produced_non_finite], [
        m.name for m in modules if m.produced_non_finite_gradient
    ]


def test_the_first_to_make_what_is_not_a_number_is_told_from_those_that_pass_it_on() -> None:
    x = torch.randn(3, 4)
    chain = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Logarithm()), nn.Linear(4, 4), nn.ReLU())
    assert makers(chain, x)[0] == ["1.1"]
    backward = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Root()), nn.Linear(4, 4))
    assert makers(backward, x) == ([], ["1.1"])


def test_weights_and_inputs_that_are_not_numbers_make_no_one_guilty() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert makers(model, torch.full((2, 4), torch.nan))[0] == []
    with torch.no_grad():
        model[1].weight[0, 0] = torch.inf
    assert makers(model, torch.randn(2, 4))[0] == []
