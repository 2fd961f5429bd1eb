"""The stories themselves: the same everywhere, with the probability that they claim to have."""

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
from normscope.errors import ConfigError, DtypeError, NormscopeError
from tests.data.stories.ambiguity import meetings
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


def test_the_first_story_word_for_word() -> None:
    assert next(stories(seed=0)).text == GOLDEN_TEXT


def test_the_first_hundred_stories_are_the_same_on_every_machine() -> None:
    texts = "\n\n".join(story.text for story in islice(stories(seed=0), 100))
    assert hashlib.sha256(texts.encode()).hexdigest() == GOLDEN_HASH


@seeded
@given(numbers, numbers)
def test_the_text_alone_tells_the_probability(seed: int, start: int) -> None:
    story = next(stories(seed, start))
    assert math.isclose(nats(story.text), story.nats, rel_tol=0, abs_tol=1e-9)
    assert derivations(story.text) == 1


@seeded
@given(numbers, st.integers(0, 2**64 - 20), st.integers(0, 10))
def test_any_story_can_be_the_first(seed: int, start: int, later: int) -> None:
    *_, last = islice(stories(seed, start), later + 1)
    assert next(stories(seed, start + later)) == last


def test_seeds_and_numbers_give_other_stories() -> None:
    texts = [story.text for seed in range(20) for story in islice(stories(seed), 50)]
    assert len(set(texts)) == len(texts)


def test_the_last_number_is_the_end() -> None:
    assert len(list(stories(seed=0, start=2**64 - 2))) == 2


def test_no_text_can_be_made_in_two_ways() -> None:
    assert meetings(story_grammar()) == []


def test_the_floor_is_what_stories_need_on_average() -> None:
    told = list(islice(stories(seed=1), 4000))
    for expected, seen in (
        (entropy_floor().bits_per_story, [story.nats / math.log(2) for story in told]),
        (entropy_floor().bytes_per_story, [len(story.text.encode()) for story in told]),
    ):
        error = statistics.stdev(seen) / math.sqrt(len(seen))
        assert abs(statistics.mean(seen) - expected) < 4 * error
        assert error < 0.01 * expected  # or the line above would pass anything


def test_the_floor_has_not_moved_unnoticed() -> None:
    assert round(entropy_floor().bits_per_byte, 3) == 0.222


@seeded
@given(numbers, st.data())
def test_an_altered_story_is_refused_where_it_was_altered(seed: int, data: st.DataObject) -> None:
    text = next(stories(seed)).text
    place = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(NotAStoryError) as caught:
        nats(f"{text[:place]}#{text[place + 1 :]}")
    assert caught.value.place == place


@seeded
@given(st.text())
def test_random_text_raises_nothing_but_the_one_error(text: str) -> None:
    with pytest.raises(NotAStoryError) as caught:
        nats(text)
    assert 0 <= caught.value.place <= len(text)


def test_half_a_story_and_more_than_one_are_refused() -> None:
    text = next(stories(seed=0)).text
    with pytest.raises(NotAStoryError, match="got the end"):
        nats(text[:-1])
    with pytest.raises(NotAStoryError, match="the end"):
        nats(f"{text}\n{text}")


def test_the_error_survives_the_way_between_processes() -> None:
    with pytest.raises(NotAStoryError) as caught:
        nats("Once")
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert str(copy) == str(caught.value)
    assert copy.place == caught.value.place


@every_refusal(
    ("negative seed", ConfigError, "seed=-1 must be a whole number from 0 to 2^64 - 1", lambda: stories(-1)),
    ("fraction", ConfigError, "seed=0.5 must be", lambda: stories(0.5)),  # type: ignore[arg-type]
    ("too large", ConfigError, "start=18446744073709551616 must be", lambda: stories(0, 2**64)),
    ("truth value", ConfigError, "start=True must be", lambda: stories(0, True)),
    ("bytes", DtypeError, "a story is a text, but got bytes", lambda: nats(b"Once")),  # type: ignore[arg-type]
)
def test_wrong_arguments_are_refused_at_once(error: type[NormscopeError], words: str, mistake: object) -> None:
    assert callable(mistake)
    with pytest.raises(error) as caught:
        mistake()
    assert words in str(caught.value)


def test_telling_needs_neither_torch_nor_numpy() -> None:
    code = "import sys; from normscope.data.stories import stories; next(stories(0)); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert not {"torch", "numpy"} & {*done.stdout.split()}
