"""Where gradients were lost, and which function made the first NaN: function, line and module."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.diagnostics.findings import Finding
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record_json import load_record, save_record
from tests.diagnostics.cases import adamw, run_steps
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import points

Loss = Callable[[Any, Tensor, Tensor], Any]


def _trained(model: nn.Module, loss: Loss, steps: int = 2, lr: float = 1e-3) -> Xray:
    x, labels = points(0)
    with Xray(model) as found:
        run_steps([lambda: loss(model, x, labels)] * steps, adamw(model, lr))
    return found


def _first(found: Xray, name: str) -> Finding:
    return next(finding for finding in found.findings if finding.name == name)


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = mlp(16, 16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x.detach()  # the line that findings name
        y: Tensor = self.last(x)
        return y


def _cross_entropy(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(x), labels)


def test_cut_has_its_function_line_and_parameters() -> None:
    found = _trained(Cut(), _cross_entropy)
    assert found.record.graph is not None
    (cut,) = found.record.graph.cuts
    assert (cut.reason, cut.function, cut.module) == ("detach", "detach", "")
    assert cut.parameters == ("first.0.weight", "first.0.bias", "first.2.weight", "first.2.bias")
    assert cut.line is not None
    assert cut.line.startswith("test_graph_and_non_finite.py:")
    assert cut.line in _first(found, "no-gradient").title


def test_values_that_only_went_to_a_log_are_not_said_to_reach_the_loss() -> None:
    class Logged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.logged = nn.Linear(16, 4), nn.Linear(16, 4)
            self.log: list[float] = []

        def forward(self, x: Tensor) -> Tensor:
            self.log.append(self.logged(x).mean().item())
            y: Tensor = self.used(x)
            return y

    found = _trained(Logged(), _cross_entropy, steps=6)
    assert found.record.graph is not None
    assert found.record.graph.cuts == ()
    assert found.record.graph.unused == ()  # nobody knows what was done with the number
    assert [finding.severity for finding in found.findings if finding.name == "no-gradient"] == ["note"]


def test_error_of_backward_has_a_finding_even_if_it_ends_the_block() -> None:
    model: Any = mlp(16, 16, 4)
    found = Xray(model)
    with pytest.raises(RuntimeError, match="does not require grad"), found:
        (model(points(0)[0]).argmax(1) == points(0)[1]).float().mean().backward()
    finding = _first(found, "graph-cut")
    assert finding.severity == "error"
    assert "argmax()" in finding.why


def test_custom_functions_are_no_cuts() -> None:
    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.round()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    rounded: Any = Rounded.apply

    def loss(model: Any, x: Tensor, labels: Tensor) -> Any:
        return F.cross_entropy(rounded(model(x)), labels)

    assert [finding.title for finding in _trained(mlp(16, 16, 4), loss).findings if "gradient" in finding.name] == []


@pytest.mark.parametrize("name", ["log", "div", "sqrt", "exp"])
def test_first_function_with_nan_is_named(name: str) -> None:
    def loss(model: Any, x: Tensor, labels: Tensor) -> Any:
        y = model(x)
        functions: dict[str, Callable[[], Tensor]] = {
            "log": lambda: torch.log(y * 0),
            "div": lambda: y / (y - y),
            "sqrt": lambda: torch.sqrt(-1 - y.square()),
            "exp": lambda: torch.exp(1000 + y),
        }
        return (functions[name]() + 1).mean() * 2

    found = _trained(mlp(16, 16, 4), loss, steps=1)
    assert found.record.non_finite is not None
    assert found.record.non_finite.loss is not None
    assert found.record.non_finite.loss.function == name
    assert f"{name}() (test_graph_and_non_finite.py:" in _first(found, "non-finite-output").title


def test_derivative_with_nan_is_named() -> None:
    def loss(model: Any, x: Tensor, labels: Tensor) -> Any:
        y = F.relu(model(x))
        return torch.where(y > 0, y.sqrt(), torch.zeros(())).mean()

    found = _trained(mlp(16, 16, 4), loss, steps=1)
    assert "derivative of sqrt()" in _first(found, "non-finite-gradient").title


def test_mask_of_minus_infinity_is_no_origin() -> None:
    def loss(model: Any, x: Tensor, labels: Tensor) -> Any:
        scores = model(x).masked_fill(torch.eye(4).bool()[torch.arange(len(x)) % 4], -math.inf)
        return scores.softmax(-1)[:, 0].mean()

    assert _trained(mlp(16, 16, 4), loss).record.non_finite is None


def test_divergence_comes_before_the_function_that_overflows() -> None:
    model: Any = mlp(16, 64, 64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    x = points(0)[0]
    with Xray(model) as found:
        run_steps([lambda: F.mse_loss(model(x), 3 * x[:, :1])] * 12, optimizer)
    assert [finding.name for finding in found.findings][:2] == ["update-too-large", "non-finite-output"]


def test_records_keep_both(tmp_path: Path) -> None:
    record = _trained(Cut(), lambda model, x, labels: _cross_entropy(model, x, labels) * math.nan, steps=1).record
    assert record.graph is not None
    assert record.non_finite is not None
    save_record(record, tmp_path / "xray.json")
    loaded = load_record(tmp_path / "xray.json")
    assert (loaded.graph, loaded.non_finite) == (record.graph, record.non_finite)
