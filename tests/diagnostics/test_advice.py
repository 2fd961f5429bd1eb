"""What a finding states is true, and its fix works as written."""

import copy
import html
import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.diagnostics.diff.diff import compare
from normscope.diagnostics.findings import Finding, find
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.report.diff import render_diff
from normscope.diagnostics.report.page import xray_page
from normscope.diagnostics.report.summary import verdict
from normscope.diagnostics.report.terminal import render_text
from normscope.models.gpt import GPT
from normscope.models.presets import preset
from tests.diagnostics.networks import mlp
from tests.support import randn

X = randn(64, 16, dtype=torch.float32)
LABELS = (torch.arange(64) % 5).clamp(max=3)


def looked_at(model: nn.Module, label: str = "", x: Tensor = X) -> XrayRecord:
    with Xray(model, label=label) as look:
        F.cross_entropy(model(x), LABELS[: len(x)]).backward()
    return look.record


def of(record: XrayRecord, name: str) -> dict[str, Finding]:
    return {finding.module: finding for finding in find(record) if finding.name == name}


def test_dead_units_explain_the_zero_gradients_beside_them() -> None:
    model: Any = mlp(16, 64, 64, 4)
    nn.init.constant_(model[0].bias, -100.0)
    record = looked_at(model)
    assert "1" in of(record, "dead-units")
    assert not of(record, "zero-gradient").keys() & {"0", "2"}


def test_weights_of_zero_are_named() -> None:
    model: Any = mlp(16, 64, 64, 4)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    record = looked_at(model)
    assert "all weights of `0` are zero" in of(record, "dead-units")["1"].fix
    assert "all its weights are zero" in of(record, "zero-gradient")["0"].why


class BothWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 8, batch_first=True, bidirectional=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.rnn(x.unflatten(-1, (4, 4)))[0][:, -1])
        return y


def test_the_reverse_direction_at_the_last_step() -> None:
    found = of(looked_at(BothWays()), "zero-gradient")["rnn"]
    assert "only the last time step" in found.why
    assert "torch.cat([h[-2], h[-1]], dim=-1)" in found.fix
    assert "float16" not in found.fix


def test_the_code_for_copied_weights_can_be_pasted() -> None:
    for copies in (1, 3):
        first = nn.Linear(16, 16)
        model: Any = nn.Sequential(first, *(copy.deepcopy(first) for _ in range(copies)), nn.Linear(16, 4))
        found = next(iter(of(looked_at(model), "duplicate-weights").values()))
        code = found.fix.split("\n", 1)[1]
        exec(code, {"model": model, "nn": nn})
        assert not of(looked_at(model), "duplicate-weights")
        shown = render_text(looked_at(model), [found])
        assert all(f"       {line}\n" in shown for line in code.split("\n"))
        assert f"<pre>{code}</pre>" in html.unescape(xray_page(looked_at(model), [found]))


def test_without_a_pass_nothing_is_advised() -> None:
    model = mlp(16, 8, 4)
    with Xray(model) as look:
        pass
    assert look.findings == []
    assert "The model did not run" in verdict(look.record, look.findings)


def test_an_empty_batch_is_not_called_well() -> None:
    model = mlp(16, 8, 4)
    with Xray(model) as look:
        model(X[:0]).sum().backward()
    assert [finding.name for finding in look.findings] == ["empty-batch"]
    assert "No problems found" not in verdict(look.record, look.findings)
    with Xray(model) as some:  # a last batch that is empty does no harm
        for x in (X, X[:0]):
            model(x).sum().backward()
    assert not of(some.record, "empty-batch")


def test_probabilities_are_told_with_the_loss_that_they_allow() -> None:
    record = looked_at(nn.Sequential(mlp(16, 8, 4), nn.Softmax(-1)))
    assert [(loss.logits_function, loss.logits_module) for loss in record.losses] == [("softmax", "1")]
    least = of(record, "probabilities-as-logits")["1"].evidence["minimum loss"]
    sure = F.cross_entropy(F.one_hot(LABELS, 4).float(), LABELS)
    assert abs(float(least) - float(sure)) < 1e-6
    with torch.no_grad(), Xray(nn.Linear(16, 4)) as look:
        F.cross_entropy(torch.sigmoid(look._model(X)), LABELS)
    assert [(loss.logits_function, loss.logits_module) for loss in look.record.losses] == [("sigmoid", None)]


def test_which_norm_it_is() -> None:
    sizes: dict[str, Any] = {"vocab_size": 31, "context": 8, "depth": 1, "width": 16, "heads": 2}
    for name, kind in (("gpt2", "Norm ... [d]"), ("llama", "Norm rms ... [d]")):
        model = GPT(preset(name, **sizes))
        with Xray(model) as look:
            model(torch.zeros(1, 8, dtype=torch.long))
        assert look.record["final_norm"].kind == kind
        assert f"final_norm {kind}" in render_text(look.record, [], width=100)


def rendered(a: XrayRecord, b: XrayRecord, width: int = 80) -> list[str]:
    lines = render_diff(compare(a, b), width=width).plain.splitlines()
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line for line in lines)
    return lines


def test_another_mode_is_said_first_and_whole() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 4))
    lines = rendered(looked_at(model, "one"), looked_at(copy.deepcopy(model).eval(), "other"))
    assert "the model was in training vs eval mode" in lines
    begins = next(i for i, line in enumerate(lines) if "forward: first differs in 1" in line)
    assert lines[begins + 1].startswith("  training vs eval mode; same input")


def test_other_shapes_are_told_as_such() -> None:
    torch.manual_seed(0)
    lines = rendered(looked_at(mlp(16, 64, 4), "a narrow one"), looked_at(mlp(16, 96, 4), "a wide one"))
    text = "\n".join(lines)
    assert "inf" not in text
    assert "shape" in text
    assert "    output shape (64, 64) vs (64, 96); weight (64, 16) vs (96, 16)" in text
    assert "  output shape (64, 64) vs (64, 96)" in next(
        after for line, after in itertools.pairwise(lines) if "forward" in line
    )


def test_the_modules_of_a_difference_add_up() -> None:
    model: Any = mlp(16, 64, 64, 4)
    inside = looked_at(model, "inside")
    with Xray(model, label="outside", submodules=False) as look:
        F.cross_entropy(model(X), LABELS)
    assert rendered(inside, look.record)[-1] == "6 modules: 1 equal, 5 recorded only in inside"
    model[2].weight.data.mul_(2)
    last = rendered(inside, looked_at(nn.Sequential(*model, nn.Identity()), "longer"))[-1]
    assert last == "7 modules: 6 differ, 1 in only one"
