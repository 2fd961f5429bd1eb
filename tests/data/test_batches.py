"""Batches visit each token once per epoch in a computed order; validation visits each token once."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from normscope.data.batches import Batches, windows
from normscope.data.token_file import TokenFile
from normscope.errors import ArgumentTypeError, ConfigError, CorpusError, NormscopeError
from tests.support import every_refusal

seeded = settings(derandomize=True, deadline=None)

sizes = {"length": st.integers(2, 400), "context": st.integers(1, 40), "batch": st.integers(1, 9)}
few_tokens = {**sizes, "length": st.integers(2, 150)}
"""For tests that go through all of them several times."""


@settings(seeded, max_examples=seeded.max_examples // 3)
@given(**few_tokens, seed=st.integers(0, 2**64 - 1))
def test_epoch_covers_adjacent_windows_once(length: int, context: int, batch: int, seed: int) -> None:
    if length < context + 1:
        return
    starts = first_tokens(Batches(np.arange(length), context, batch, seed), 3 * (length - context)).tolist()
    while starts:
        offset = starts[0] % context
        wanted = list(range(offset, length - context, context))
        assert sorted(starts[: len(wanted)]) == wanted
        starts = starts[len(wanted) :]


@settings(seeded, max_examples=seeded.max_examples // 3)
@given(**few_tokens, seed=st.integers(0, 2**64 - 1))
def test_every_start_is_used_once_per_cycle(length: int, context: int, batch: int, seed: int) -> None:
    if length < context + 1:
        return
    starts = length - context
    seen = first_tokens(Batches(np.arange(length), context, batch, seed), 3 * starts)
    for cycle in seen.reshape(3, starts):
        assert sorted(cycle.tolist()) == list(range(starts))


def first_tokens(batches: Batches, windows: int) -> NDArray[np.int64]:
    """First tokens of this many windows, from the start of the run."""
    numbers = range(-(-windows // batches.size))
    return np.concatenate([batches.batch(i)[0][:, 0] for i in numbers])[:windows]


@seeded
@given(**sizes, number=st.integers(0, 10**9))
def test_targets_are_next_tokens(length: int, context: int, batch: int, number: int) -> None:
    if length < context + 1:
        return
    inputs, targets = Batches(np.arange(length, dtype=np.uint16), context, batch).batch(number)
    assert inputs.shape == targets.shape == (batch, context)
    assert inputs.dtype == targets.dtype == np.int64
    assert inputs.flags.c_contiguous
    assert targets.flags.c_contiguous
    assert (targets == inputs + 1).all()
    assert (np.diff(inputs, axis=1) == 1).all()


def test_every_token_is_used_eventually() -> None:
    batches = Batches(np.arange(35), context=8, batch=4, seed=1)
    seen = np.concatenate([np.concatenate(batches.batch(i)).ravel() for i in range(60)])
    assert set(seen.tolist()) == set(range(35))


def test_batches_have_random_access() -> None:
    first, second = (Batches(np.arange(1000), 16, 4, seed=3) for _ in range(2))
    wanted = [first.batch(i)[0].tolist() for i in range(30)]
    assert [second.batch(i)[0].tolist() for i in reversed(range(30))] == wanted[::-1]


def test_seeds_and_epochs_differ() -> None:
    tokens = np.arange(1000)
    orders = [Batches(tokens, 10, 99, seed).batch(i)[0][:, 0].tolist() for seed in (0, 1) for i in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert len({min(order) for order in orders}) > 1, "another start each time"


def test_batches_are_the_same_in_every_process() -> None:
    code = (
        "import sys, numpy as np; from normscope.data.batches import Batches\n"
        "print(Batches(np.arange(10_000), 4, 2, seed=7).batch(12_345)[0].tolist(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[[557, 558, 559, 560], [7449, 7450, 7451, 7452]] False\n"


def test_epoch_is_proportional_to_the_batch_number() -> None:
    batches = Batches(np.arange(999), context=9, batch=11)  # 110 windows an epoch
    assert [batches.epoch(i) for i in (0, 5, 10, 25)] == [0.0, 0.5, 1.0, 2.5]


@seeded
@given(**sizes)
def test_validation_predicts_every_token_except_the_first_once(length: int, context: int, batch: int) -> None:
    pairs = list(windows(np.arange(length), context, batch))
    targets = np.concatenate([targets.ravel() for _, targets in pairs])
    assert targets.tolist() == list(range(1, length))
    assert all((targets == inputs + 1).all() for inputs, targets in pairs)
    whole, rest = divmod(length - 1, context)
    rows = [inputs.shape for inputs, _ in pairs]
    assert rows == [(min(batch, whole - i), context) for i in range(0, whole, batch)] + [(1, rest)] * (rest > 0)


def test_a_token_file_gives_the_same_as_its_array(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 60_000, 1000).astype("<u2")
    path = tmp_path / "train.bin"
    path.write_bytes(array.tobytes())
    file = TokenFile(path, "uint16", 1000)
    for i in range(5):
        np.testing.assert_array_equal(Batches(file, 16, 4).batch(i), Batches(array, 16, 4).batch(i))
    for ours, theirs in zip(windows(file, 16, 4), windows(array, 16, 4), strict=True):
        np.testing.assert_array_equal(ours, theirs)


TOKENS: Any = np.arange(10)


@every_refusal(
    (
        "short",
        CorpusError,
        r"has 10 tokens, .* context=10 needs at least 11\nfix: .* at most 9",
        lambda: Batches(TOKENS, 10, 1),
    ),
    ("context", ConfigError, "context=0 must be", lambda: Batches(TOKENS, 0, 1)),
    ("batch", ConfigError, "batch=1.5 must be", lambda: Batches(TOKENS, 2, 1.5)),  # type: ignore[arg-type]
    ("seed", ConfigError, "seed=-1 must be", lambda: Batches(TOKENS, 2, 1, seed=-1)),
    ("number", ConfigError, "integer >= 0, but got -1", lambda: Batches(TOKENS, 2, 1).batch(-1)),
    ("list", ArgumentTypeError, "TokenFile or a 1-D .*, but got list", lambda: Batches([1, 2], 1, 1)),  # type: ignore[arg-type]
    ("table", ArgumentTypeError, r"but got int64 of shape \(2, 5\)", lambda: Batches(TOKENS.reshape(2, 5), 1, 1)),
    ("floats", ArgumentTypeError, "but got float64", lambda: windows(TOKENS / 2, 1, 1)),
    ("one", CorpusError, "has 1 tokens, but at least 2 are needed\nfix: ", lambda: windows(TOKENS[:1], 1, 1)),
    ("window", ConfigError, "context=-1 must be", lambda: windows(TOKENS, -1, 1)),
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Callable[[], Any]) -> None:
    with pytest.raises(error, match=words):
        mistake()
