"""Findings on records made by hand: what is at the edge, what is missing, and that no record makes them fail."""

import math
from dataclasses import fields, replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from normscope.diagnostics.findings import SEVERITIES, Finding, find
from normscope.diagnostics.record import LossRecord, ModuleRecord, ParameterRecord, StepRecord, XrayRecord
from normscope.diagnostics.stats.tensors import AttentionStats, NormStats, ResidualJoin, TensorStats, UnitStats
from tests.support import few_examples


def signal(rms: float = 1.0, count: int = 1000, non_finite: float = 0.0) -> TensorStats:
    return TensorStats(count, 0.0, rms, rms * rms, -3 * rms, 3 * rms, 3.0, 0.0, non_finite)


def weight(name: str = "weight", rms: float = 0.1, gradient: float | None = 0.01, **more: Any) -> ParameterRecord:
    known: dict[str, Any] = {
        "shape": (32, 32),
        "dtype": "float32",
        "requires_grad": True,
        "values": signal(rms, 1024),
        "gradient": None if gradient is None else signal(gradient),
        "update_ratio": None,
        "in_optimizer": None,
        "alias_of": None,
        "content_hash": None,
        "identical_rows": False,
        "predicted_gain": rms * 32**0.5,
    }
    return ParameterRecord(name=name, **{**known, **more})


def linear(name: str, order: int | None, rms: float = 1.0, **more: Any) -> ModuleRecord:
    known: dict[str, Any] = {
        "kind": "Linear",
        "order": order,
        "calls": 1,
        "input_shapes": ((8, 32),),
        "output_shapes": ((8, 32),),
        "input": signal(),
        "output": signal(rms),
        "gradient": signal(),
        "parameters": (weight(),),
        "training": True,
    }
    return ModuleRecord(name=name, **{**known, **more})


def norm(name: str, order: int, shape: tuple[int, ...], **more: Any) -> ModuleRecord:
    figures: dict[str, Any] = {
        "eps": 1e-5,
        "input_variance": 1.0,
        "reduced_axes": (len(shape) - 1,),
        "removes_bias": False,
        "reduction_size": 32,
        "drift": None,
        "batches_tracked": None,
        "padding_fraction": 0.0,
        "weight_mean": 1.0,
        "weight_std": 0.0,
        "finite_for_zeros": True,
    }
    return ModuleRecord(
        name,
        "LayerNorm",
        order=order,
        calls=1,
        input_shapes=(shape,),
        output_shapes=(shape,),
        training=True,
        output=signal(),
        norm=NormStats(**{**figures, **more}),
    )


def record(*modules: ModuleRecord, **more: Any) -> XrayRecord:
    known: dict[str, Any] = {"batches": 1, "backward_passes": 1}
    return XrayRecord("Model", (ModuleRecord("", "Model", order=0, output=signal()), *modules), **{**known, **more})


def names(made: XrayRecord) -> list[tuple[str, str, str]]:
    return [(finding.severity, finding.name, finding.module) for finding in find(made)]


def test_empty_records_have_no_findings() -> None:
    assert find(XrayRecord("Model", (), 0, 0)) == []
    assert find(XrayRecord("Model", (ModuleRecord("", "Model"),), 0, 0)) == []
    assert find(record()) == []


def test_one_linear_layer_has_no_findings() -> None:
    assert find(record(linear("fc", 1))) == []


def test_without_gradients_nothing_is_said_of_them() -> None:
    silent = [linear(f"{i}", i + 1, gradient=None, parameters=(weight(gradient=None),)) for i in range(6)]
    assert find(record(*silent, backward_passes=0)) == []


def test_module_that_never_ran_is_a_note_of_its_outermost() -> None:
    idle = [
        ModuleRecord("spare", "Block"),
        linear("spare.a", None, parameters=(weight(gradient=None),)),
        linear("spare.b", None, parameters=(weight(gradient=None),)),
    ]
    assert names(record(linear("fc", 1), *idle)) == [("note", "never-ran", "spare")]


def test_weights_that_are_used_without_a_call_did_run() -> None:
    assert find(record(linear("fc", 1), linear("projection", None))) == []


def test_of_nan_everywhere_the_first_maker_is_named_and_nothing_else() -> None:
    sick = [linear(f"{i}", i + 1, output=signal(non_finite=1.0), gradient=signal(non_finite=1.0)) for i in range(8)]
    sick[3] = replace(sick[3], produced_non_finite=True)
    made = record(*sick, losses=(LossRecord(float("nan"), 10),))
    assert names(made) == [("error", "non-finite-output", "3")]
    assert find(made)[0].evidence["modules affected"] == 8


def test_numbers_that_are_not_finite_and_reach_nothing_are_a_note() -> None:
    masks = linear("mask", 1, output=signal(non_finite=0.5), produced_non_finite=True)
    assert names(record(masks, linear("fc", 2))) == [("note", "non-finite-output", "mask")]


def test_weights_spoilt_by_a_step_are_no_cause() -> None:
    spoilt = weight(values=signal(non_finite=1.0), update_ratio=float("nan"), in_optimizer=True)
    layers = [linear(f"{i}", i + 1, parameters=(spoilt,)) for i in range(3)]
    layers[1] = replace(layers[1], produced_non_finite_gradient=True)
    assert names(record(*layers)) == [("error", "non-finite-gradient", "1")]
    before = replace(spoilt, update_ratio=0.0)
    layers[2] = replace(layers[2], parameters=(before,))
    assert names(record(*layers)) == [("error", "non-finite-weights", "2")]


def test_one_odd_layer_is_no_trend() -> None:
    sizes = [1.0, 1.0, 1.0, 1e-6, 1e-6, 1e-6]
    assert find(record(*(linear(f"{i}", i + 1, rms) for i, rms in enumerate(sizes)))) == []
    fading = [10.0**-i for i in range(1, 7)]
    found = names(record(*(linear(f"{i}", i + 1, rms) for i, rms in enumerate(fading))))
    assert found == [("warning", "vanishing-activations", "5")]


def test_layers_that_read_the_same_are_no_stack() -> None:
    fading = [linear(f"{i}", i + 1, 10.0**-i, fed_by=("stem",)) for i in range(7)]
    assert find(record(*fading)) == []


def test_gradient_of_zero_below_a_weight_of_zero_is_a_start() -> None:
    below = linear("below", 1, parameters=(weight(gradient=0.0),))
    head = linear("head", 2, parameters=(weight(rms=0.0, gradient=0.1),))
    assert find(record(below, head)) == []
    started = linear("head", 2, parameters=(weight(gradient=0.1),))
    assert names(record(below, started)) == [("warning", "zero-gradient", "below")]


def test_unused_part_at_the_end_is_a_note_and_a_cut_a_warning() -> None:
    cut = linear("features", 1, parameters=(weight(gradient=None),), gradient=None)
    relu = ModuleRecord("relu()", "relu", is_function=True, order=2, fed_by=("features",), output=signal())
    head = linear("head", 3, fed_by=("relu()",))
    assert names(record(cut, relu, head)) == [("warning", "no-gradient", "features")]
    assert names(record(cut, relu, head, interrupted=True)) == []
    # That something runs after it says nothing: it may be a target, or the last of an unused kind.
    assert names(record(cut, linear("head", 3))) == [("note", "no-gradient", "features")]
    stream = ResidualJoin(1.0, 1.0, 1.4, "embedding", "features", None)
    block = ModuleRecord("block", "Block", order=2, joins=(stream,), gradient=signal())
    assert names(record(cut, block, linear("head", 3))) == [("warning", "no-gradient", "features")]
    assert names(record(cut, replace(block, gradient=None), linear("head", 3))) == [("note", "no-gradient", "features")]


def test_copies_that_are_frozen_or_tied_are_meant() -> None:
    same = weight(content_hash="same")
    first, second = linear("a", 1, parameters=(same,)), linear("b", 2, parameters=(same,))
    assert names(record(first, second)) == [("warning", "duplicate-weights", "b")]
    frozen = replace(second, parameters=(replace(same, requires_grad=False, gradient=None),))
    tied = replace(second, parameters=(replace(same, alias_of="a.weight"),))
    assert find(record(first, frozen)) == []
    assert find(record(first, tied)) == []


def _post_norm(*steps: StepRecord) -> XrayRecord:
    join = ResidualJoin(1.0, 1.0, 1.4, None, None, "norm")
    return record(
        *(ModuleRecord(f"blocks.{i}", "Block", order=i + 1, joins=(join, join)) for i in range(8)), steps=steps
    )


def test_warm_up_is_asked_of_adam_at_its_start_and_of_no_other() -> None:
    cold = StepRecord("AdamW", 1e-3, 1, None)
    assert names(_post_norm(cold)) == [("warning", "post-norm-without-warmup", "blocks")]
    for fine in (
        replace(cold, optimizer="SGD"),
        replace(cold, optimizer="RAdam"),
        replace(cold, lr=2e-5),
        replace(cold, number=5000),
        replace(cold, lr=1e-5, peak_lr=1e-3),
    ):
        assert find(_post_norm(fine)) == []


def test_loss_below_chance_says_nothing() -> None:
    head = linear("head", 1, output_shapes=((8, 10),))
    assert find(record(head, losses=(LossRecord(0.01, 10),))) == []
    assert names(record(head, losses=(LossRecord(30.0, 10, logits_source="head"),))) == [
        ("warning", "loss-above-chance", "head")
    ]
    risen = find(
        record(head, losses=(LossRecord(2.3, 10, logits_source="head"), LossRecord(30.0, 10, logits_source="head")))
    )
    assert [finding.title.split()[:3] for finding in risen] == [["the", "last", "loss"]]


def test_weight_that_starts_at_zero_may_double() -> None:
    stepping = (StepRecord("AdamW", 1e-3, 2, None),)
    young = weight(rms=1e-3, update_ratio=1.0, in_optimizer=True)
    grown = weight(rms=0.2, update_ratio=1.0, in_optimizer=True)
    assert find(record(linear("fc", 1, parameters=(young,)), steps=stepping)) == []
    found = names(record(linear("fc", 1, parameters=(grown,)), steps=stepping))
    assert found == [("warning", "update-too-large", "fc")]


def test_width_as_long_as_time_is_no_leak() -> None:
    looks = AttentionStats(4, 32, (0.9,) * 4, (0.0,) * 4, 1.0, 0.0)
    attention = ModuleRecord("attention", "Attention", order=1, input_shapes=((8, 32, 32),), attention=looks)
    assert find(record(attention, norm("norm", 2, (8, 32, 32)))) == []
    over_time = norm("norm", 2, (8, 32, 64), reduced_axes=(0, 1))
    assert names(record(attention, over_time)) == [("error", "norm-leaks-future", "norm")]
    ahead = replace(attention, attention=replace(looks, future_weight=0.2))
    assert find(record(ahead, over_time)) == []


def test_many_like_findings_become_one_that_names_the_others() -> None:
    norms = [norm(f"blocks.{i}.norm", i + 1, (8, 32), eps=1.0, input_variance=1e-3) for i in range(5)]
    found = find(record(*norms))
    assert [(finding.name, finding.module) for finding in found] == [("eps-too-large", "blocks.0.norm")]
    assert found[0].evidence["also in"] == ", ".join(f"blocks.{i}.norm" for i in range(1, 5))


def test_the_most_severe_come_first_then_those_that_run_first() -> None:
    dead = UnitStats(16, 1000, 16, None, 0.0, ())
    modules = [
        norm("late", 3, (8, 32), eps=1.0, input_variance=1e-3),
        norm("early", 1, (8, 32), eps=1.0, input_variance=1e-3),
        ModuleRecord("relu", "ReLU", order=4, units=dead, output=signal()),
        linear("spare", None, parameters=(weight(gradient=None),)),
        linear("fc", 5),
    ]
    found = [(severity, module) for severity, _, module in names(record(*modules))]
    assert found == [("error", "relu"), ("warning", "early"), ("warning", "late"), ("note", "spare")]


def test_every_text_names_its_module_and_says_what_to_do() -> None:
    made = record(norm("blocks.0.norm", 1, (8, 32), eps=1.0, input_variance=1e-3))
    finding = find(made)[0]
    assert "`blocks.0.norm`" in finding.title
    assert "1" in finding.title
    assert finding.why.endswith(".")
    assert finding.fix.startswith("set eps")


NAMES = [
    "",
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "head",
    "blocks",
    *(f"blocks.{i}{p}" for i in range(5) for p in ("", ".fc", ".relu()")),
]
numbers = st.floats(allow_nan=True, allow_infinity=True)
sizes = st.floats(min_value=0, allow_infinity=True) | st.just(math.nan)
counts = st.integers(0, 1 << 40)
shapes = st.lists(st.integers(0, 64), max_size=4).map(tuple)
places = st.sampled_from(NAMES)
signals = st.builds(TensorStats, counts, numbers, sizes, sizes, numbers, numbers, numbers, sizes, sizes)
units = st.builds(
    UnitStats,
    counts,
    counts,
    counts,
    st.none() | counts,
    sizes,
    st.lists(st.tuples(counts, sizes, sizes), max_size=2).map(tuple),
)
looks = st.builds(
    AttentionStats,
    counts,
    counts,
    st.lists(numbers, max_size=3).map(tuple),
    st.lists(numbers, max_size=3).map(tuple),
    st.none() | numbers,
    st.none() | numbers,
)
joins = st.builds(ResidualJoin, sizes, sizes, sizes, st.none() | places, st.none() | places, st.none() | places)
norm_figures = st.builds(
    NormStats,
    st.none() | numbers,
    numbers,
    st.none() | st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.none() | st.booleans(),
    st.none() | counts,
    st.none() | st.tuples(numbers, numbers),
    st.none() | counts,
    numbers,
    st.none() | numbers,
    st.none() | numbers,
    st.none() | st.booleans(),
)
parameters = st.builds(
    ParameterRecord,
    st.sampled_from(["weight", "bias"]),
    shapes,
    st.just("float32"),
    st.booleans(),
    signals,
    st.none() | signals,
    st.none() | numbers,
    st.none() | st.booleans(),
    st.none() | places,
    st.none() | st.sampled_from(["a", "b"]),
    st.booleans(),
    st.none() | numbers,
)
modules = st.builds(
    ModuleRecord,
    places,
    st.sampled_from(["Linear", "relu", "Block"]),
    st.booleans(),
    st.none() | st.integers(0, 40),
    counts,
    st.none() | places,
    st.lists(shapes, max_size=2).map(tuple),
    st.lists(shapes, max_size=2).map(tuple),
    st.none() | st.just("float16"),
    st.none() | st.booleans(),
    st.none() | counts,
    counts,
    st.none() | signals,
    st.none() | signals,
    st.none() | signals,
    st.none() | numbers,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.lists(places, max_size=2).map(tuple),
    st.none() | units,
    st.none() | units,
    st.none() | norm_figures,
    st.none() | looks,
    st.lists(joins, max_size=3).map(tuple),
    st.lists(parameters, max_size=2).map(tuple),
    st.lists(numbers, max_size=6).map(tuple),
)
steps = st.builds(StepRecord, st.sampled_from(["Adam", "SGD"]), numbers, st.none() | counts, st.none() | numbers)
records = st.builds(
    XrayRecord,
    st.just("Model"),
    st.lists(modules, max_size=12).map(tuple),
    counts,
    counts,
    st.lists(steps, max_size=2).map(tuple),
    st.lists(st.builds(LossRecord, numbers, counts), max_size=2).map(tuple),
)


@few_examples
@given(records)
def test_no_record_makes_them_fail(made: XrayRecord) -> None:
    found = find(made)
    known = {module.name for module in made.modules}
    order = [SEVERITIES.index(finding.severity) for finding in found]
    assert order == sorted(order)
    for finding in found:
        assert isinstance(finding, Finding)
        assert all(getattr(finding, each.name) is not None for each in fields(finding))
        assert finding.module in known or finding.module == "" or any(name.startswith(finding.module) for name in known)
