"""The built-in stories are reproducible and have the probability that they report."""

import hashlib
import math
import pickle
import statistics
import subprocess
import sys
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.data.stories import NotAStoryError, derivations, entropy_floor, nats, stories, story_grammar
from normscope.errors import ArgumentTypeError, ConfigError, NormscopeError
from tests.data.stories.ambiguity import ambiguities
from tests.support import every_refusal

seeded = settings(derandomize=True, deadline=None)
numbers = st.integers(0, 2**64 - 2)

GOLDEN_TEXT = (
    "Here is the story of a curious boy called Ben. He always wore a yellow jacket and liked to count "
    "clouds more than anything.\n"
    "On a cool summer Friday, he promised to bake a carrot loaf with his grandmother. Then he dropped the "
    "milk, and the dog ate it. So he hurried to the meadow. There was an old badger, whose name was Monu.\n"
    'Ben knocked at its tunnel. "We need milk," he called kindly. "I will give you milk for some apples," '
    "said Monu, and he found some in his bag.\n"
    "Two hours later the carrot loaf was ready. The best piece was for the old badger, because of the "
    "milk."
)
GOLDEN_HASH = "f76c5227a17e877a2a0b2eb487bf49938afadb4137885b4ea77af8e8bf3e05c0"


def test_golden_story() -> None:
    assert next(stories(seed=0)).text == GOLDEN_TEXT


def test_golden_hash_of_a_hundred_stories() -> None:
    texts = "\n\n".join(story.text for story in islice(stories(seed=0), 100))
    assert hashlib.sha256(texts.encode()).hexdigest() == GOLDEN_HASH


@seeded
@given(numbers, numbers)
def test_parse_recovers_the_probability(seed: int, start: int) -> None:
    story = next(stories(seed, start))
    assert math.isclose(nats(story.text), story.nats, rel_tol=0, abs_tol=1e-9)
    assert derivations(story.text) == 1


@seeded
@given(numbers, st.integers(0, 2**64 - 20), st.integers(0, 10))
def test_random_access_by_index(seed: int, start: int, later: int) -> None:
    *_, last = islice(stories(seed, start), later + 1)
    assert next(stories(seed, start + later)) == last


def test_seeds_and_indices_give_distinct_stories() -> None:
    texts = [story.text for seed in range(20) for story in islice(stories(seed), 50)]
    assert len(set(texts)) == len(texts)


def test_last_index() -> None:
    assert len(list(stories(seed=0, start=2**64 - 2))) == 2


@pytest.mark.exhaustive  # test_parse_recovers_the_probability finds stories with two derivations
def test_grammar_is_unambiguous() -> None:
    assert ambiguities(story_grammar()) == []


def test_entropy_matches_the_sample_mean() -> None:
    sample = list(islice(stories(seed=1), 4000))
    for expected, seen in (
        (entropy_floor().bits_per_story, [story.nats / math.log(2) for story in sample]),
        (entropy_floor().bytes_per_story, [len(story.text.encode()) for story in sample]),
    ):
        error = statistics.stdev(seen) / math.sqrt(len(seen))
        assert abs(statistics.mean(seen) - expected) < 4 * error
        assert error < 0.01 * expected  # otherwise the check above is vacuous


def test_entropy_golden_value() -> None:
    assert round(entropy_floor().bits_per_byte, 3) == 0.222


@seeded
@given(numbers, st.data())
def test_altered_story_is_rejected_at_altered_character(seed: int, data: st.DataObject) -> None:
    text = next(stories(seed)).text
    position = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(NotAStoryError) as caught:
        nats(f"{text[:position]}#{text[position + 1 :]}")
    assert caught.value.position == position


@seeded
@given(st.text())
def test_random_text_raises_only_not_a_story_error(text: str) -> None:
    with pytest.raises(NotAStoryError) as caught:
        nats(text)
    assert 0 <= caught.value.position <= len(text)


def test_truncated_and_concatenated_stories_are_rejected() -> None:
    text = next(stories(seed=0)).text
    with pytest.raises(NotAStoryError, match="got the end"):
        nats(text[:-1])
    with pytest.raises(NotAStoryError, match="the end"):
        nats(f"{text}\n{text}")


def test_error_can_be_pickled() -> None:
    with pytest.raises(NotAStoryError) as caught:
        nats("Once")
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert str(copy) == str(caught.value)
    assert copy.position == caught.value.position


@every_refusal(
    ("negative seed", ConfigError, "seed=-1 must be an integer from 0 to 2^64 - 1", lambda: stories(-1)),
    ("fraction", ConfigError, "seed=0.5 must be", lambda: stories(0.5)),  # type: ignore[arg-type]
    ("too large", ConfigError, "start=18446744073709551616 must be", lambda: stories(0, 2**64)),
    ("truth value", ConfigError, "start=True must be", lambda: stories(0, True)),
    ("bytes", ArgumentTypeError, "a story must be a str, but got bytes", lambda: nats(b"Once")),  # type: ignore[arg-type]
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: object) -> None:
    assert callable(mistake)
    with pytest.raises(error) as caught:
        mistake()
    assert words in str(caught.value)


def test_generation_imports_neither_torch_nor_numpy() -> None:
    code = "import sys; from normscope.data.stories import stories; next(stories(0)); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert not {"torch", "numpy"} & {*done.stdout.split()}
