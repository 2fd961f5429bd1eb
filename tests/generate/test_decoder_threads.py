"""The decoder's threads: fewer on a busy machine, with the same bits."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from normscope.generate.decoder import Decoder
from normscope.generate.tokens import generate_tokens
from normscope.models.gpt import GPT
from normscope.models.presets import llama
from normscope.runtime import adaptive_threads as adaptive
from normscope.runtime.openmp import ShortSpin
from tests.generate.decoding import known_layout
from tests.runtime.test_adaptive_threads import BusyMeter

MODEL = llama(vocab_size=300, context=32, depth=1, width=192, heads=2)


@pytest.fixture(autouse=True)
def _four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NORMSCOPE_THREADS", "adaptive")
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(1)


def test_a_busy_machine_gets_fewer_threads_and_the_same_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for others, threads in ((0.0, 4), (2.0, 2), (3.9, 1)):
        monkeypatch.setattr(adaptive, "_meter", BusyMeter(others, cores=4))
        torch.manual_seed(0)
        model = GPT(MODEL)
        layout = known_layout(model)
        assert layout.threads().threads == threads
        decoder = Decoder(layout, model.new_cache(batch=3))
        found[threads] = np.stack([decoder.advance(tokens).copy() for tokens in ([1, 2, 3], [4, 5, 6])])
        assert torch.get_num_threads() == 4
    assert np.array_equal(found[4], found[2])
    assert np.array_equal(found[4], found[1])


def test_thread_timings_survive_a_change_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "_meter", BusyMeter(3.9, cores=4))
    model = GPT(MODEL)
    before = known_layout(model).threads()
    with torch.no_grad():
        model.embedding.weight.mul_(2)
    assert known_layout(model).threads() is before
    torch.set_num_threads(2)  # someone else's decision, which begins anew
    assert known_layout(model).threads().max_threads == 2


def test_short_texts_share_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "_meter", BusyMeter(3.9, cores=4))
    model = GPT(MODEL)
    forgotten = []
    monkeypatch.setattr(adaptive.AdaptiveThreads, "reset", lambda threads: forgotten.append(threads.max_threads))
    for _ in range(3):
        Decoder(known_layout(model), model.new_cache(2))
    assert len(forgotten) == 1  # at the first text
    Decoder(known_layout(model), model.new_cache(3))
    assert len(forgotten) == 2  # a step of three rows takes another time than one of two


@pytest.mark.parametrize("known", [True, False])
def test_the_wait_policy_is_restored_after_a_text(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(adaptive, "_meter", BusyMeter(3.9, cores=4))
    monkeypatch.setattr("normscope.generate.decoder.can_decode", lambda model: known)
    generate_tokens(GPT(MODEL), [[1, 2]], max_new_tokens=3)
    gc.collect()
    assert not ShortSpin.is_active()
