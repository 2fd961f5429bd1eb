"""What is said once steps have been made: the start is not blamed for what they did."""

from dataclasses import replace

import pytest

from normscope.diagnostics.findings import Finding, find
from normscope.diagnostics.record import LossRecord, StepRecord, XrayRecord
from tests.diagnostics.test_findings import linear, names, record, signal, weight

TWENTY = (StepRecord("AdamW", 1e-3, 20, None),)


def _large(change: float | None = 1e-3) -> XrayRecord:
    """Three layers with a gain of 17, of weights that change by so much in a step."""
    layers = [linear(name, i + 1, parameters=(weight(rms=3.0, update_rms=change),)) for i, name in enumerate("abc")]
    return record(*layers)


def _with_steps(made: XrayRecord, *steps: StepRecord) -> list[Finding]:
    return find(XrayRecord(made.model, made.modules, 1, 1, steps=steps))


def test_large_weights_after_many_steps_are_laid_to_the_rate() -> None:
    (finding,) = _with_steps(_large(), *TWENTY)
    assert (finding.name, finding.module) == ("exploded-weights", "")
    assert "after 20 steps" in finding.title
    assert "2 other layers" in finding.title
    assert "A learning rate that is too high" in finding.why
    assert finding.fix.startswith("lower the learning rate, clip")


def test_large_weights_that_two_steps_have_hardly_changed_are_laid_to_the_start() -> None:
    found = _with_steps(_large(), StepRecord("AdamW", 1e-3, 2, None))
    assert {finding.name for finding in found} == {"abnormal-gain"}
    assert found[0].fix.endswith("instead of 3")  # nothing else can be the cause


def test_large_weights_that_one_step_has_made_are_laid_to_the_rate() -> None:
    (finding,) = _with_steps(_large(change=3.0), StepRecord("SGD", 1.0, None, None))
    assert (finding.name, finding.module) == ("exploded-weights", "")
    assert "after training" in finding.title


def test_where_nobody_knows_of_steps_both_are_said() -> None:
    found = find(_large())
    assert {finding.name for finding in found} == {"abnormal-gain"}
    assert "initialize with std 0.177" in found[0].fix
    assert "if training made the weights this large, lower the learning rate" in found[0].fix


def test_one_weight_that_has_grown_is_named() -> None:
    layers = [linear(name, i + 1, parameters=(weight(rms=0.1),)) for i, name in enumerate("abc")]
    layers[1] = linear("b", 2, parameters=(weight(rms=3.0),))
    assert names(record(*layers, steps=TWENTY)) == [("warning", "exploded-weights", "b")]


def test_weights_off_centre_after_steps_are_no_start() -> None:
    shifted = replace(signal(0.1, 1024), mean=0.08)
    layer = linear("fc", 1, parameters=(weight(values=shifted),))
    assert names(record(layer)) == [("warning", "uncentered-weights", "fc")]
    assert names(record(layer, steps=TWENTY)) == []


def test_first_loss_after_steps_is_not_laid_to_the_start() -> None:
    head = linear("head", 1, output_shapes=((8, 10),))
    fresh = find(
        record(head, losses=(LossRecord(30.0, 10, logits_source="head"),), steps=(StepRecord("AdamW", 1e-3, 1, None),))
    )
    later = find(record(head, losses=(LossRecord(30.0, 10, logits_source="head"),), steps=TWENTY))
    assert fresh[0].fix.startswith("use a smaller initialization for `head`")
    assert later[0].fix.startswith("lower the learning rate")
    assert "training has diverged" in later[0].why


@pytest.mark.parametrize("sign", [1, -1])
def test_trends_after_steps_may_come_from_them(sign: int) -> None:
    layers = [linear(f"{i}", i + 1, 10.0 ** (sign * (i + 1))) for i in range(6)]
    fresh, later = (
        next(finding for finding in find(made) if finding.name.endswith("-activations"))
        for made in (record(*layers), record(*layers, steps=TWENTY))
    )
    assert fresh.fix.startswith("initialize the weights")
    assert later.fix.startswith("if the model was healthy at initialization, lower the learning rate, clip")


def test_odd_weight_after_steps_is_not_to_be_started_again() -> None:
    sizes = [0.1, 0.1, 0.1, 3.0, 0.1]
    layers = [
        linear(f"blocks.{i}.fc", i + 1, parameters=(weight(rms=rms, shape=(32, 2)),)) for i, rms in enumerate(sizes)
    ]
    fresh = [finding for finding in find(record(*layers)) if finding.name == "outlier-weights"]
    later = [finding for finding in find(record(*layers, steps=TWENTY)) if finding.name == "outlier-weights"]
    assert fresh[0].fix.startswith("initialize it like the others")
    assert later[0].fix.startswith("check the learning rate of its parameter group")
    assert "Training has changed this weight" in later[0].why


def test_a_run_knows_its_steps_although_none_was_seen() -> None:
    head = linear("head", 1, output_shapes=((8, 10),), parameters=(weight(rms=3.0),))
    later = find(record(head, losses=(LossRecord(30.0, 10, logits_source="head"),), steps_before=20))
    assert [finding.name for finding in later] == ["loss-above-chance", "exploded-weights"]
    assert not any(finding.fix.startswith(("initialize", "use a smaller initialization")) for finding in later)
