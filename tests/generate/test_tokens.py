"""Token generation matches uncached forward passes; stop tokens, samples, batches, prompts."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normscope.errors import ArgumentTypeError, ConfigError, NormscopeError, TokenError
from normscope.generate.config import GenerationConfig
from normscope.generate.sampling import sample_token, uniform
from normscope.generate.tokens import Generation, TokenEvent, generate_tokens
from tests.generate.writers import CONTEXT, FORMS, VOCABULARY, slow_continuation, writer
from tests.pairs import every_value
from tests.support import every_refusal, few_examples

GREEDY = GenerationConfig(temperature=0)
SAMPLINGS = {
    "greedy": GREEDY,
    "plain": GenerationConfig(),
    "all": GenerationConfig(temperature=1.3, top_k=20, top_p=0.95, min_p=0.01, repetition_penalty=1.2),
}
PROMPTS = [[3], [1, 2, 3, 4, 5], [28, 0] * 8, [7] * 11]


@every_value(form=list(FORMS), sampling=list(SAMPLINGS))
def test_tokens_match_uncached_forward_passes(form: str, sampling: str) -> None:
    """With the cache, past the context (of 16), several prompts at once: as one token after the other from scratch."""
    model = writer(form).eval()
    found = generate_tokens(model, PROMPTS, max_new_tokens=18, config=SAMPLINGS[sampling], seed=11)
    for prompt, text in zip(PROMPTS, found, strict=True):
        assert text.tokens == slow_continuation(model, prompt, 18, SAMPLINGS[sampling], seed=11)
        assert text.finish_reason == "length"


def test_greedy_decoding_matches_argmax() -> None:
    model, tokens = writer("gpt2").eval(), [1, 2, 3]
    (text,) = generate_tokens(model, [tokens], max_new_tokens=CONTEXT - 3, config=GREEDY)
    with torch.no_grad():
        logits = model(torch.tensor([tokens + text.tokens]))[0]
    assert text.tokens == logits[2:-1].argmax(dim=-1).tolist()


@few_examples
@given(lengths=st.lists(st.integers(1, 2 * CONTEXT), min_size=1, max_size=4), batch_size=st.integers(1, 5))
def test_prompts_of_any_length_even_beyond_the_context(lengths: list[int], batch_size: int) -> None:
    model, sampling = writer("nanochat").eval(), GenerationConfig()
    prompts = [[(7 * i + length) % VOCABULARY for i in range(length)] for length in lengths]
    found = generate_tokens(model, prompts, max_new_tokens=7, batch_size=batch_size)
    for prompt, text in zip(prompts, found, strict=True):
        assert text.tokens == slow_continuation(model, prompt, 7, sampling)
        assert len(text.notices) == (len(prompt) > CONTEXT) + (len(prompt) + 7 > CONTEXT)


def test_samples_differ_and_do_not_depend_on_their_number() -> None:
    model = writer()
    many = generate_tokens(model, PROMPTS, max_new_tokens=12, samples=4)
    assert [(text.prompt, text.sample) for text in many] == [(p, s) for p in range(4) for s in range(4)]
    assert len({tuple(text.tokens) for text in many}) == 16
    few = generate_tokens(model, PROMPTS[1:2], max_new_tokens=12, samples=2)
    assert [text.tokens for text in few] == [text.tokens for text in many[4:6]]


def test_seeds() -> None:
    model = writer()
    texts = [generate_tokens(model, [[1]], max_new_tokens=20, seed=seed)[0].tokens for seed in (0, 1, 0)]
    assert texts[0] == texts[2] != texts[1]


def test_a_truncated_text_continues_the_same() -> None:
    model = writer()
    (whole,) = generate_tokens(model, [[1, 2]], max_new_tokens=12, seed=4)
    (start,) = generate_tokens(model, [[1, 2]], max_new_tokens=5, seed=4)
    (rest,) = generate_tokens(model, [[1, 2, *start.tokens]], max_new_tokens=7, seed=4)
    assert start.tokens + rest.tokens == whole.tokens


def test_stop_tokens_end_a_sequence_and_are_not_part_of_it() -> None:
    model, prompts = writer(), [[i] for i in range(12)]
    free = generate_tokens(model, prompts, max_new_tokens=10)
    ended = generate_tokens(model, prompts, max_new_tokens=10, stop_tokens=(5, 6))
    assert {text.finish_reason for text in ended} == {"stop_token", "length"}
    for without, text in zip(free, ended, strict=True):
        first = next((i for i, token in enumerate(without.tokens) if token in (5, 6)), None)
        assert text.tokens == without.tokens[:first]
        assert text.finish_reason == ("length" if first is None else "stop_token")


def test_events_are_complete_and_the_caller_may_stop_a_sequence() -> None:
    model = writer()
    generation = Generation(model, [[1], [2]], max_new_tokens=9, samples=2, stop_tokens=[5])
    heard: dict[int, list[TokenEvent]] = {i: [] for i in range(4)}
    for event in generation:
        heard[event.sequence].append(event)
        if event.sequence == 2 and len(heard[2]) == 3:
            generation.stop(2)
    for i, row in enumerate(generation.sequences):
        assert [event.token for event in heard[i] if event.token is not None] == row.generated_tokens
        assert all(event.finish_reason is None for event in heard[i][:-1])
    assert generation.sequences[2].finish_reason == "stop"
    assert len(heard[2]) == 3
    assert heard[3][-1].finish_reason == generation.sequences[3].finish_reason
    whole = generate_tokens(model, [[1], [2]], max_new_tokens=9, samples=2, stop_tokens=[5])
    for i in (0, 1, 3):  # the others did not notice
        assert generation.sequences[i].generated_tokens == whole[i].tokens


def test_an_event_has_the_logits_that_its_token_was_sampled_from() -> None:
    model = writer()
    config = GenerationConfig(max_new_tokens=9, temperature=0.5, top_k=3)
    generation = Generation(model, [[1, 2]], config, stop_tokens=[5], vocabulary=7)
    tokens = [1, 2]
    for event in generation:
        wanted = model(torch.tensor([tokens]), last_only=True)[0, -1, :7].detach().double().numpy()
        np.testing.assert_allclose(event.logits, wanted, rtol=1e-4, atol=1e-4)
        token = 5 if event.token is None else event.token
        assert sample_token(event.logits, config, uniform(0, 0, len(tokens))) == token
        tokens.append(token)
    assert len(tokens) > 3


def test_a_sequence_may_be_stopped_before_its_batch() -> None:
    """In the middle of a round, and while it waits."""
    model = writer()
    whole = generate_tokens(model, [[1], [2], [3]], max_new_tokens=4)
    generation = Generation(model, [[1], [2], [3]], max_new_tokens=4, batch_size=2)
    events = []
    for event in generation:
        events.append(event.sequence)
        if len(events) == 3:  # text 0 got its second token, and text 1 is next
            generation.stop(1)
            generation.stop(2)
    assert events == [0, 1, 0, 0, 0]
    assert [row.generated_tokens for row in generation.sequences] == [whole[0].tokens, whole[1].tokens[:1], []]


def test_batch_size_and_finished_sequences_limit_the_work() -> None:
    model, seen = writer(), []
    model.blocks[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[1]))
    generation = Generation(model, [[1, 2, 3], [4]], max_new_tokens=4, samples=2, batch_size=4)
    for event in generation:
        if event.sequence in (0, 3):
            generation.stop(event.sequence)
    # Each prompt is read once for both of its samples; then two texts are left, for three more tokens.
    assert seen == [3, 1] + [1, 1] * 3
    waiting = Generation(model, [[1], [2], [3]], max_new_tokens=2, batch_size=2)
    assert [event.sequence for event in waiting] == [0, 1, 0, 1, 2, 2]


def test_vocabulary_limits_the_tokens() -> None:
    model = writer()
    (text,) = generate_tokens(model, [[20]], max_new_tokens=60, vocabulary=4)
    assert set(text.tokens) <= {0, 1, 2, 3}


def test_no_prompts() -> None:
    assert generate_tokens(writer(), [], max_new_tokens=3) == []


def test_prompts_of_any_sequence_type() -> None:
    model = writer()
    kinds: list[Any] = [[1, 2], (1, 2), np.array([1, 2], dtype=np.uint16), torch.tensor([1, 2])]
    texts = generate_tokens(model, kinds, max_new_tokens=8)
    assert len({tuple(text.tokens) for text in texts}) == 1


def test_a_context_of_one() -> None:
    model = writer("gpt2", context=1).eval()
    (text,) = generate_tokens(model, [[1, 2]], max_new_tokens=5)
    tokens = [1, 2]
    for token in text.tokens:
        assert token == generate_tokens(model, [tokens], max_new_tokens=1)[0].tokens[0]
        tokens.append(token)


def ask(*prompts: Any, model: Any = None, **settings: Any) -> Any:
    return lambda: Generation(model or writer(), prompts or [[1]], **{"max_new_tokens": 2, **settings})


@every_refusal(
    ("model", ConfigError, "must be a GPT, but got Linear\nfix:", ask(model=torch.nn.Linear(2, 2))),
    ("nothing", ConfigError, "a prompt is empty\nfix: .*tokenizer.eos_token_id", ask([1], [])),
    ("unknown", TokenError, "token id 29 is out of range: the vocabulary of the model is 0 to 28", ask([29])),
    ("negative", TokenError, "token id -1 is out of range", ask([-1])),
    ("text", ArgumentTypeError, "but got str\nfix: encode the text", ask("hello")),
    ("number", ArgumentTypeError, r"but got int\nfix: prompts=\[\[1, 2, 3\]\]", ask(3)),
    ("tensor-of-one-prompt", ArgumentTypeError, "but got ndarray\nfix: prompts=", ask(*torch.tensor([1, 2]))),
    ("half", ArgumentTypeError, r"must be integers, but got 1\.5", ask([1.5])),
    ("nested", ArgumentTypeError, r"must be integers, but got \[1\]", ask([[1]])),
    ("stop", TokenError, "token id 40 is out of range", ask(stop_tokens=[40])),
    ("length", ConfigError, "max_new_tokens=0 must be", ask(max_new_tokens=0)),
    ("samples", ConfigError, "samples=0 must be", ask(samples=0)),
    ("batch-size", ConfigError, "batch_size=0 must be", ask(batch_size=0)),
    ("seed", ConfigError, "seed=-3 must be", ask(seed=-3)),
    ("config", ConfigError, "expects a GenerationConfig, but got", ask(config={"temperature": 1})),
    ("typo", ConfigError, "no setting 'tempreature'; did you mean 'temperature'", ask(tempreature=1)),
    ("other-setting", ConfigError, "no setting 'beams'; the settings are: max_new_tokens, ", ask(beams=1)),
    ("weights", ConfigError, "invalid weights='int4'\nfix: use one of float32, bfloat16, int8", ask(weights="int4")),
    ("stop-string", ConfigError, "fix: use generate_text", lambda: generate_tokens(writer(), [[1]], stop=["end"])),
    ("vocabulary", ConfigError, "vocabulary=30 exceeds vocab_size=29", ask(vocabulary=30)),
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
