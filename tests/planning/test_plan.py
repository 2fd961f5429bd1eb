"""Plans: what follows from the config, what is refused, and the cost model on numbers that can be checked by hand."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope import plan
from normscope.errors import ConfigError, FileError, NormscopeError
from normscope.models.presets import gpt2, nanochat_2026_07
from normscope.planning.activations import Kept
from normscope.planning.gpus import GPUS, Cluster, find_gpu
from normscope.planning.layout import Layout, share_model
from normscope.planning.memory import fullest_rank, rank_memory
from normscope.planning.plan import USABLE
from normscope.planning.step_time import flops_per_token, step_time
from normscope.planning.traffic import Message, sent_fraction, step_messages
from normscope.runs.initial_weights import empty_model
from normscope.training.config import ParallelName, TrainConfig
from tests.support import every_refusal
from tests.training.small_run import new_run

SMALL = {"depth": 2, "width": 64, "heads": 2, "context": 64, "vocab_size": 500}
TRAIN = TrainConfig(steps=1, batch=1)
PARALLEL: list[ParallelName] = ["ddp", "fsdp"]


def share(parallel: ParallelName, ranks: int, **sizes: Any) -> Layout:
    return share_model(empty_model(gpt2(**{**SMALL, **sizes})), TRAIN, parallel, ranks)


@pytest.mark.parametrize("ranks", [1, 3, 8, 1000])
def test_the_parts_of_all_ranks_are_the_whole(ranks: int) -> None:
    for layout in (share("ddp", ranks), share("fsdp", ranks)):
        memories = [rank_memory(layout, rank, Kept(0, 0)) for rank in range(ranks)]
        matrices = sum(weight.nbytes for weight in layout.trained if weight.is_muon)
        others = sum(weight.nbytes for weight in layout.trained if not weight.is_muon)
        counters = sum(not weight.is_muon for weight in layout.trained) * 4
        whole = matrices + 2 * others
        most_counters = counters * (ranks if layout.parallel == "fsdp" else 1)
        assert whole < sum(memory.optimizer for memory in memories) <= whole + most_counters
        assert memories[fullest_rank(layout)] == max(memories, key=lambda memory: memory.total)
        assert all(memory.weights * ranks >= matrices + others for memory in memories)
    sharded, copied = rank_memory(share("fsdp", ranks), 0, Kept(0, 0)), rank_memory(share("ddp", ranks), 0, Kept(0, 0))
    assert sharded.weights <= copied.weights
    assert sharded.gradients <= copied.gradients


def test_rows_are_rounded_up() -> None:
    by_shape = {weight.shape: weight for weight in share("fsdp", 3).weights}
    weight = by_shape[(64, 64)]
    assert weight.part_bytes(3) == 22 * 64 * 4
    assert [weight.rows_bytes(3, rank) for rank in range(3)] == [22 * 256, 22 * 256, 20 * 256]
    assert [weight.rows_bytes(60, rank) for rank in (0, 31, 32, 59)] == [512, 512, 0, 0]


def test_one_rank_sends_nothing() -> None:
    assert step_messages(share("fsdp", 1)) == []


def test_fsdp_gathers_parameters_in_every_micro_batch() -> None:
    one, three = (step_messages(share("fsdp", 4), count) for count in (1, 3))
    for before, after in zip(one, three, strict=True):
        factor = 1 if before.phase == "update" else 3
        assert (after.nbytes, after.count) == (factor * before.nbytes, factor * before.count)
    assert step_messages(share("ddp", 4), 1) == step_messages(share("ddp", 4), 3)


@given(st.integers(2, 5000))
def test_nccl_reduces_and_scatters_at_half_of_the_cost(ranks: int) -> None:
    assert sent_fraction("reduce-scatter", ranks, "nccl") * 2 == sent_fraction("reduce-scatter", ranks, "gloo")
    assert sent_fraction("broadcast", ranks, "gloo") * ranks == pytest.approx(ranks - 1)


def test_flops_of_a_token() -> None:
    matrices = 2 * 12 * 64**2
    attention = 12 * 64 * (64 + 1) / 2 * 2
    assert flops_per_token(empty_model(gpt2(**SMALL))) == 6 * (matrices + 500 * 64) + attention
    untied = empty_model(gpt2(**SMALL, tied_head=False))
    assert flops_per_token(untied) == flops_per_token(empty_model(gpt2(**SMALL)))
    windowed = empty_model(gpt2(**SMALL, window=4))
    assert flops_per_token(windowed) == 6 * (matrices + 500 * 64) + 12 * 64 * (4 - 6 / 64) * 2


def test_embeddings_of_values_are_looked_up_and_not_multiplied() -> None:
    small, large = (empty_model(nanochat_2026_07(**{**SMALL, "vocab_size": size})) for size in (500, 1000))
    assert flops_per_token(large) - flops_per_token(small) == 6 * 500 * 64  # the head


def test_a_step_by_hand() -> None:
    """1 s of computation, messages of 3, 0.5 and 4 s, no Muon."""
    gpu = dataclasses.replace(GPUS["h100"], bfloat16_tflops=2.0, node_bandwidth=10.0, network_bandwidth=5.0)
    layout = share_model(empty_model(gpt2(**SMALL)), TrainConfig(steps=1, batch=1, optimizer="adamw"), "fsdp", 2)
    messages = [
        Message("a", "all-gather", "forward", 6 * 10**9, 1),
        Message("b", "reduce-scatter", "backward", 10**9, 5),
        Message("c", "broadcast", "update", 8 * 10**9, 1),
    ]
    inside = Cluster(gpu, gpus_per_node=2, mfu=0.5, link_efficiency=0.1, latency=0.0)
    time = step_time(layout, messages, 1e12, inside, "bfloat16")
    assert (time.compute, time.update) == (1.0, 0.0)
    assert time.messages == pytest.approx(3 + 0.5 + 4)
    # A third of the computation hides the first; the second is hidden but for its last part; nothing hides the third.
    assert time.exposed == pytest.approx(3 - 1 / 3 + 0.5 / 5 + 4)
    assert time.total == pytest.approx(1 + time.exposed)
    between = dataclasses.replace(inside, gpus_per_node=1, latency=0.01)
    assert step_time(layout, messages, 1e12, between, "bfloat16").messages == pytest.approx(2 * 7.5 + 7 * 0.01)


def test_efficiency_rises_with_bandwidth_and_is_below_one() -> None:
    found = [
        plan("gpt2", gpus=64, model=SMALL, batch=6400, network_bandwidth=speed).rows[0].efficiency
        for speed in (0.1, 1.0, 100.0)
    ]
    assert 0 < found[0] < found[1] < found[2] < 1


def test_gpus_without_windows_are_lost() -> None:
    few, even = (plan("gpt2", gpus=4, model=SMALL, batch=batch, parallel="ddp").rows[0] for batch in (5, 8))
    assert (few.windows, even.windows) == (2, 2)
    assert few.time == even.time
    assert few.efficiency / even.efficiency == pytest.approx(5 / 8)


def test_the_last_micro_batch_is_smaller() -> None:
    settings: dict[str, Any] = {"gpus": 4, "model": SMALL, "parallel": "ddp"}
    (divided,) = plan("gpt2", batch=24, micro_batch=20, **settings).rows
    (whole,) = plan("gpt2", batch=24, **settings).rows
    assert (divided.windows, divided.micro_batches, whole.windows) == (5, 2, 6)
    assert divided.time.compute == whole.time.compute


@pytest.mark.parametrize("parallel", PARALLEL)
def test_the_largest_number_of_windows_fits_and_one_more_does_not(parallel: ParallelName) -> None:
    for memory in (0.3, 1.0):
        (row,) = plan("llama", gpus=3, model=SMALL, memory=memory, parallel=parallel).rows
        assert row.fits
        assert row.windows == row.largest
        assert row.batch == 3 * row.largest
        usable = USABLE * memory * 2**30
        more = plan("llama", gpus=3, model=SMALL, memory=10.0, parallel=parallel, batch=3 * (row.largest + 1)).rows[0]
        assert row.memory.total <= usable < more.memory.total


def test_a_batch_that_does_not_fit_is_divided() -> None:
    (row,) = plan("gpt2", gpus=2, model=SMALL, memory=0.1, batch=1000, parallel="ddp").rows
    assert row.micro_batches == math.ceil(1000 / (2 * row.largest)) > 1
    assert row.fits
    (given,) = plan("gpt2", gpus=2, model=SMALL, memory=0.1, batch=1000, micro_batch=900, parallel="ddp").rows
    assert not given.fits
    (none,) = plan("gpt2", gpus=2, model=SMALL, memory=0.0015, parallel="ddp").rows
    assert (none.fits, none.largest, none.batch, none.tokens_per_second) == (False, 0, 0, 0)


def test_a_run_brings_its_own_settings(tmp_path: Path) -> None:
    run = new_run(tmp_path, optimizer="adamw")
    found = plan(run.folder, gpus=[2])
    assert found.model == run.config.model
    assert {row.batch for row in found.rows} == {run.config.train.batch}
    assert all(row.time.update == 0 for row in found.rows)
    assert plan(run.folder, gpus=[2], batch=6).rows[0].batch == 6


def test_adapters_need_little() -> None:
    whole, lora = (plan("llama", gpus=4, model=SMALL, batch=8, lora=rank) for rank in (None, 4))
    assert lora.trained < whole.trained == whole.parameters < lora.parameters
    for a, b in zip(whole.rows, lora.rows, strict=True):
        assert b.memory.gradients < a.memory.gradients / 4
        assert b.memory.optimizer < a.memory.optimizer
        assert b.sent < a.sent


def test_one_gpu_shares_with_nobody() -> None:
    (row,) = plan("gpt2", gpus=1, model=SMALL, batch=2).rows
    assert (row.messages, row.sent, row.time.exposed) == ((), 0, 0)


def test_facts_are_replaced() -> None:
    assert find_gpu("a100", memory_gb=40.0).memory == 40 * 2**30
    assert find_gpu("a100").flops("float32") == 19.5e12
    assert plan("gpt2", gpus=2, model=SMALL, flops=5.0, precision="float32").cluster.gpu.float32_tflops == 5.0


SMALL_PLAN: dict[str, Any] = {"gpus": 2, "model": SMALL}


@every_refusal(
    ("no GPUs", ConfigError, "no number of GPUs", lambda: plan("gpt2", gpus=[])),
    ("zero GPUs", ConfigError, "gpus=0", lambda: plan("gpt2", gpus=0)),
    ("too many", ConfigError, "at most 16,384", lambda: plan("gpt2", gpus=10**6)),
    ("GPU", NormscopeError, "unknown GPU 'h1000'", lambda: plan("gpt2", gpu="h1000")),
    ("mfu", ConfigError, "at most 1", lambda: plan("gpt2", mfu=40)),
    ("bandwidth", ConfigError, "network_bandwidth", lambda: plan("gpt2", network_bandwidth=0.0)),
    ("node", ConfigError, "gpus_per_node", lambda: plan("gpt2", gpus_per_node=0)),
    ("setting", ConfigError, "no setting 'bach'", lambda: plan("gpt2", bach=3)),
    ("model setting", ConfigError, "'dept'", lambda: plan("gpt2", model={"dept": 3})),
    ("source", FileError, "no such model", lambda: plan("gpt9")),
    ("no batch", ConfigError, "give batch too", lambda: plan("gpt2", micro_batch=3, **SMALL_PLAN)),
)
def test_refused(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()


def test_the_model_of_a_run_is_fixed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"are fixed, but got depth"):
        plan(new_run(tmp_path).folder, model={"depth": 3})
