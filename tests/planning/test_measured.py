"""Predicted bytes of memory and of messages, against those of gloo ranks that train."""

import itertools
import sys
from typing import Any

import pytest

from normscope.blocks.norm.norm_spec import NormSpec
from normscope.planning.activations import kept_bytes
from normscope.planning.layout import share_model
from normscope.planning.memory import rank_memory
from normscope.planning.traffic import sent_bytes, step_messages
from normscope.runs.initial_weights import empty_model, set_trainable
from tests.pairs import each_once
from tests.planning.measured import Case, Measured, measure_all
from tests.training.ranks.processes import on_ranks

TOLERANCE = 0.05
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "micro-batches": {"batch": 9, "micro_batch": 4},
    "adamw": {"optimizer": "adamw"},
    "bfloat16": {"precision": "bfloat16"},
    "lora": {"lora": 8},
    "freeze": {"freeze": "embedding.*,blocks.0.*"},
}
MODELS: dict[str, dict[str, Any]] = {
    "small": {},
    "tied": {"tied_head": True},
    "untied": {"tied_head": False},
    "uneven": {"width": 90, "heads": 3, "vocab_size": 1003, "depth": 3},  # of no size that 4 divides
    "statistics": {"norm": NormSpec("[b s] d", state="running"), "allow_future_leak": True},
}
PRESETS = ["gpt2", "llama", "nanochat", "nanochat-2026-07"]
PARALLEL = ["ddp", "fsdp"]


def all_cases() -> list[Case]:
    axes = itertools.product(PRESETS, PARALLEL, SETTINGS.values(), MODELS.values())
    return [Case(name, parallel, settings, model) for name, parallel, settings, model in axes]


def cases_with_each_value() -> list[Case]:
    axes: list[list[Any]] = [[*PRESETS, *PRESETS[::-1]], PARALLEL, [*SETTINGS.values()], [*MODELS.values()]]
    return [Case(*(axis[i] for axis, i in zip(axes, row, strict=True))) for row in each_once(list(map(len, axes)))]


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts the bytes of TCP connections as Linux does")


def test_bytes_of_two_ranks() -> None:
    compare(2, cases_with_each_value())


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("parallel", PARALLEL)
def test_bytes_in_every_case(size: int, name: str, parallel: str) -> None:
    compare(size, [case for case in all_cases() if (case.preset, case.parallel) == (name, parallel)])


def compare(size: int, cases: list[Case]) -> None:
    measured: list[list[Measured]] = on_ranks(size, measure_all, cases)
    for case, *of_ranks in zip(cases, *measured, strict=True):
        config, train = case.config(), case.train()
        model = empty_model(config)
        set_trainable(model, train)
        layout = share_model(model, train, train.parallel, size)
        at_a_time = train.micro_batch or train.batch
        kept = kept_bytes(config, train, -(-at_a_time // size), train.precision, "fused")
        for rank, found in enumerate(of_ranks):
            memory = rank_memory(layout, rank, kept)
            wanted = (found.weights, found.gradients, found.optimizer)
            # AdamW's counters and padding of single rows are what small models consist of.
            assert (memory.weights, memory.gradients, memory.optimizer) == pytest.approx(wanted, rel=0.01), case
            if train.parallel == "fsdp":
                whole = layout.gathered_bytes(layout.root) + max(map(layout.gathered_bytes, layout.blocks))
                assert found.gathered == pytest.approx(whole, rel=0.01), case
        most = max(found.kept for found in of_ranks)  # of the ranks with one row more, if rows cannot be divided
        assert kept.copies + kept.activations == pytest.approx(most, rel=TOLERANCE), case
        messages = step_messages(layout, -(-train.batch // at_a_time))
        sent, received = (sum(getattr(found, way) for found in of_ranks) / size for way in ("sent", "received"))
        assert sent == pytest.approx(received, rel=0.01)
        assert sent_bytes(messages, size, "gloo") == pytest.approx(sent, rel=TOLERANCE), case
