"""Training data: determined by the seed, and disjoint from held-out data."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from normscope.errors import CorpusError, FileError
from normscope.lab.trials.images import build_network, load_digits, train_images
from normscope.lab.trials.measuring import training_flops
from normscope.lab.trials.text import SMALL_GPT, train_text
from normscope.lab.trials.text_sources import load_text, non_utf8_notice, store_text, text_folder
from normscope.models.gpt import GPT
from normscope.models.presets import llama

TINY = {**SMALL_GPT, "model": {**SMALL_GPT["model"], "depth": 1, "width": 16}, "steps": 20, "batch": 4}


def test_stored_text_is_loaded_as_its_bytes(tmp_path: Path) -> None:
    content = ("żółw " * 4000).encode()
    path = tmp_path / "turtle.txt"
    path.write_bytes(content)
    name = store_text(path, tmp_path / "texts")
    path.unlink()  # the lab has its own
    with text_folder(tmp_path / "texts"):
        text = load_text(name)
    letters = np.array(sorted(set(content)), dtype=np.uint8)
    assert name["name"] == "turtle.txt"
    assert text.vocab_size == len(letters)
    assert letters[np.concatenate([text.train, text.validation])].tobytes() == content
    assert len(text.validation) == len(content) // 10


def test_unusable_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.txt does not exist"):
        store_text(tmp_path / "none.txt", tmp_path)
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(CorpusError, match="9 bytes"):
        store_text(tmp_path / "short.txt", tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_pipes_and_huge_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge.txt").touch()
    os.truncate(tmp_path / "huge.txt", 2**40)
    for name, words in (("pipe", "a pipe, not a regular file"), ("huge.txt", "more than the limit of 1,073,741,824")):
        assert non_utf8_notice(tmp_path / name) is None
        with pytest.raises(FileError, match=f"{words}\nfix: the path of a text file"):
            store_text(tmp_path / name, tmp_path)


def test_text_changed_after_storing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three " * 1000)
    name = store_text(tmp_path / "a.txt", tmp_path / "texts")
    (kept,) = (tmp_path / "texts").glob("*.txt")
    kept.write_text("something else " * 1000)
    with text_folder(tmp_path / "texts"), pytest.raises(FileError, match="has changed since it was stored"):
        load_text(name)


def test_training_uses_the_given_text(tmp_path: Path) -> None:
    """Two alternating letters are learned quickly; the stories are not."""
    (tmp_path / "ab.txt").write_text("ab" * 10_000)
    settings = {**TINY, "text": store_text(tmp_path / "ab.txt", tmp_path), "lr": 3e-2, "steps": 60}
    with text_folder(tmp_path):
        assert train_text(settings, 0)["loss"] < 0.1
        assert train_text({**settings, "text": "stories"}, 0)["loss"] > 1.0


def test_held_out_digits_are_fixed_and_the_others_appear_once_per_epoch() -> None:
    first, same = load_digits(), load_digits()
    assert torch.equal(first.test_images, same.test_images)
    assert len(first.images) + len(first.test_images) == 1797
    images = torch.cat([first.batch(number, 100, seed=5)[0] for number in range(14)])
    assert len(images.flatten(1).unique(dim=0)) == len(first.images.flatten(1).unique(dim=0))
    assert not torch.equal(first.batch(0, 100, seed=5)[0], first.batch(0, 100, seed=6)[0])
    assert torch.equal(first.batch(3, 100, seed=5)[0], same.batch(3, 100, seed=5)[0])


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_network_learns_the_digits(optimizer: str) -> None:
    settings = {"model": {"kind": "convnet"}, "optimizer": optimizer, "lr": 0.01, "batch": 32, "steps": 60}
    found = train_images(settings, 0)
    assert found["error"] < 0.2
    assert found["loss"] < 1.0
    assert not found["diverged"]


def test_diverged_network_counts_as_a_uniform_guess() -> None:
    settings = {"model": {"kind": "convnet", "norm": None}, "optimizer": "sgd", "lr": 1e6, "batch": 8, "steps": 20}
    found = train_images(settings, 0)
    assert found["diverged"]
    assert found["loss"] == pytest.approx(np.log(10))


def test_diverged_gpt_counts_as_a_uniform_guess() -> None:
    found = train_text({**TINY, "lr": 1e30, "warmup": 0.0, "grad_clip": None}, 0)
    assert found["diverged"]
    assert found["guessing"]
    assert found["loss"] == pytest.approx(np.log(load_text("stories").vocab_size))


def test_finite_gpt_worse_than_a_uniform_guess_is_marked() -> None:
    found = train_text({**TINY, "lr": 10.0, "warmup": 0.0}, 0)
    assert found["guessing"]
    assert not found["diverged"]
    assert not train_text({**TINY, "lr": 3e-3, "steps": 60}, 0)["guessing"]


def test_flops_match_torch() -> None:
    torch.manual_seed(0)
    model = GPT(llama(vocab_size=8, context=4, depth=1, width=8, heads=2, kv_heads=2))
    tokens = torch.randint(8, (2, 4))
    flops = training_flops(lambda: model.loss(tokens, tokens))
    matrices = (
        sum(weight.numel() for weight in model.parameters() if weight.dim() == 2) - model.embedding.weight.numel()
    )
    scores_and_values = 2 * (2 * 2 * 4 * 4 * 8)  # two products of 2 samples, 4 x 4 places and 8 features
    assert flops == 6 * matrices * tokens.numel() + 3 * scores_and_values  # forward, and back to both factors


@pytest.mark.parametrize("norm", ["power", "rms"])
def test_metrics_do_not_depend_on_counting_flops_first(norm: str) -> None:
    settings = {**TINY, "model": {**TINY["model"], "norm": norm, "dropout": 0.5}}
    first = train_text(settings, 3)
    again = train_text(settings, 3)
    assert again["curve"] == first["curve"]
    assert again["loss"] == first["loss"]
    assert again["flops"] == first["flops"]


def test_equal_compute_means_more_steps_of_a_smaller_model() -> None:
    work = 5e8
    small = train_text({**TINY, "flops": work}, 0)
    large = train_text({**TINY, "flops": work, "model": {**TINY["model"], "width": 32}}, 0)
    assert small["steps"] > 1.5 * large["steps"]
    assert small["flops"] == pytest.approx(large["flops"], rel=0.1)


def test_unknown_network_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of network 'mlp'"):
        build_network({"kind": "mlp"})


def test_non_utf8_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)))
    assert non_utf8_notice(path) == f"{path} is not UTF-8 text; training uses its raw bytes"
    path.write_text("naïve", encoding="utf-8")
    assert non_utf8_notice(path) is None
    assert non_utf8_notice(tmp_path / "nothing") is None
