"""The same seed gives the same text, bit for bit, alone and in any batch.

In float32, with sizes that fill no vector and a head so flat that all tokens are about equally likely: here a number
that is rounded otherwise soon chooses another token, and the texts part.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from normscope.generate.config import GenerationConfig
from normscope.generate.model_runner import ModelRunner
from normscope.generate.sequence import TokenSequence
from normscope.generate.tokens import Generation, generate_tokens
from normscope.models.gpt import GPT
from tests.generate.writers import VOCABULARY, every_form, writer
from tests.pairs import chiefly

LENGTH = 104


def flat(form: str) -> GPT:
    return writer(form, torch.float32, context=48)


def prompts_for(count: int, seed: int = 0) -> list[list[int]]:
    """Of 1 to 60 tokens: some longer than the context."""
    rng = np.random.default_rng(seed)
    return [rng.integers(VOCABULARY, size=int(rng.integers(1, 60))).tolist() for _ in range(count)]


@pytest.mark.parametrize("name", chiefly(["nanochat"], ["gpt2", "llama"]))  # their logits are compared below
def test_tokens_do_not_depend_on_the_batch(name: str) -> None:
    model, prompts = flat(name), prompts_for(14)
    sampling = GenerationConfig(temperature=1.1, repetition_penalty=1.1)
    alone = [generate_tokens(model, [prompt], max_new_tokens=LENGTH, config=sampling)[0].tokens for prompt in prompts]
    assert len({token for text in alone for token in text}) == VOCABULARY
    for batch_size, count in ((3, 5), (8, 14)):
        together = generate_tokens(
            model, prompts[:count], max_new_tokens=LENGTH, config=sampling, batch_size=batch_size
        )
        assert [text.tokens for text in together] == alone[:count]


@every_form
def test_tokens_do_not_depend_on_sequences_that_finish_early(form: str) -> None:
    model, prompts = flat(form), prompts_for(6, seed=1)
    alone = [generate_tokens(model, [prompt], max_new_tokens=30, stop_tokens=[1])[0] for prompt in prompts]
    together = generate_tokens(model, prompts[::-1], max_new_tokens=30, stop_tokens=[1], samples=2)
    assert len({len(text.tokens) for text in alone}) > 1
    assert [text.tokens for text in together[::2]][::-1] == [text.tokens for text in alone]


@every_form
def test_logits_are_bitwise_equal_in_any_batch(form: str) -> None:
    """What is behind it; and prompts that are read once for several samples are no exception."""

    def rows(prompts: list[list[int]]) -> list[TokenSequence]:
        return [TokenSequence(prompt, prompt=0, sample=0, context=48, vocabulary=VOCABULARY) for prompt in prompts]

    model, prompts = flat(form), prompts_for(5, seed=2)
    together, runner = rows(prompts), ModelRunner(model, 5, 48)
    lone = [(rows([prompt]), ModelRunner(model, 1, min(48, len(prompt) + 9))) for prompt in prompts]
    for step in range(9):
        found = runner.next_logits(together)
        for i, (row, lone_runner) in enumerate(lone):
            assert found[i].tobytes() == lone_runner.next_logits(row)[0].tobytes()
        if step == 4:
            runner.select([3, 3, 0])
            together, lone = [together[i] for i in (3, 0)], [lone[i] for i in (3, 0)]
            runner.select([0, 2])
        for i, (row, _) in enumerate(lone):
            together[i].append((step + i) % VOCABULARY)
            row[0].append((step + i) % VOCABULARY)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_logits_are_bitwise_equal_with_several_threads() -> None:
    model, prompts = flat("gpt2"), prompts_for(3, seed=3)
    alone = [generate_tokens(model, [prompt], max_new_tokens=15)[0].tokens for prompt in prompts]
    assert [text.tokens for text in generate_tokens(model, prompts, max_new_tokens=15)] == alone


def test_tokens_do_not_depend_on_the_order_of_events() -> None:
    """A caller that stops one text changes no other."""
    model, prompts = flat("llama"), prompts_for(4, seed=4)
    whole = generate_tokens(model, prompts, max_new_tokens=20)
    generation = Generation(model, prompts, max_new_tokens=20)
    for count, event in enumerate(generation):
        if count > 25 and event.sequence == 1:
            generation.stop(1)
    assert [row.generated_tokens for row in generation.sequences][2:] == [text.tokens for text in whole][2:]
    assert generation.sequences[1].generated_tokens == whole[1].tokens[: generation.sequences[1].num_generated]
