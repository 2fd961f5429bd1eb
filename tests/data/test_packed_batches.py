"""Conversations as batches: every document once an epoch, and targets where the assistant writes."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.data.conversations.messages import Message
from normscope.data.corpus import Corpus, open_corpus
from normscope.data.packed_batches import PackedBatches, pack, training_batches, validation_batches
from normscope.data.prepare import prepare
from normscope.data.tokenizers import ByteTokenizer
from normscope.errors import CorpusError, NormscopeError
from normscope.storage.json_files import to_json_bytes

REPLIES = [f"reply {number} " + "x" * (number % 17) for number in range(40)]


def chat(number: int) -> list[Message]:
    return [{"role": "user", "content": f"say {number}"}, {"role": "assistant", "content": REPLIES[number]}]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("chats")
    lines = [to_json_bytes({"messages": chat(number)}).replace(b"\n", b"") for number in range(40)]
    (folder / "chats.jsonl").write_bytes(b"\n\n".join(lines))
    return prepare(folder / "chats.jsonl", folder / "data", tokenizer="bytes", val_fraction=0.2)


def test_marks_are_those_of_the_replies(corpus: Corpus) -> None:
    again = open_corpus(corpus.folder, verify=True)
    assert again.marks is not None
    assert (again.record.train.documents, again.record.validation.documents) == (32, 8)
    tokens, marks = (file.window(0, len(file)) for file in (again.train, again.marks["train"]))
    parts = np.split(tokens, np.flatnonzero(marks & 2)[1:])
    masks = np.split(marks, np.flatnonzero(marks & 2)[1:])
    found = [ByteTokenizer().decode(part[(mask & 1) == 1]) for part, mask in zip(parts, masks, strict=True)]
    assert set(found) < set(REPLIES)
    assert again.record.train.trained_tokens == sum(len(text) + 1 for text in found)
    assert again.record.train.bytes_per_token == pytest.approx(sum(map(len, found)) / sum(len(t) + 1 for t in found))


def test_an_epoch_has_every_reply_once_and_targets_follow_inputs(corpus: Corpus) -> None:
    batches = training_batches(corpus, 100, 2, seed=1)
    assert isinstance(batches, PackedBatches)
    decode, replies = ByteTokenizer().decode, []
    assert len(batches) % 2 == 0 or len(batches) > 1
    for number in range(len(batches)):
        inputs, targets, positions = batches.batch(number)
        assert inputs.shape == targets.shape == positions.shape == (2, 100)
        for row in range(2):
            starts = [*np.flatnonzero(positions[row] == 0), 100]
            for start, stop in pairwise(starts):
                own = targets[row, start:stop]
                assert positions[row, start:stop].tolist() == list(range(stop - start))
                if (own >= 0).any():
                    replies.append(decode(own[own >= 0]))
                    where = np.flatnonzero(own[:-1] >= 0)
                    assert (own[where] == inputs[row, start:stop][where + 1]).all()
    assert len(replies) == 2 * 32  # two epochs
    assert len(set(replies)) == 32
    assert all(np.array_equal(a, b) for a, b in zip(batches.batch(3), batches.batch(3), strict=True))
    held_out = [targets[targets >= 0] for _, targets, *_ in validation_batches(corpus, 100, 2)]
    assert sum(map(len, held_out)) == corpus.record.validation.trained_tokens


def test_long_documents_are_cut_and_those_without_a_target_are_left_out(corpus: Corpus) -> None:
    batches = training_batches(corpus, 30, 1, seed=0)
    lengths = {int((batches.batch(number)[1] >= 0).sum()) for number in range(32)}
    assert min(lengths) > 0
    with pytest.raises(CorpusError, match="no conversation has a reply within its first 5 tokens"):
        training_batches(corpus, 5, 1, seed=0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_packing_loses_nothing_and_no_window_overflows(lengths: list[int]) -> None:
    bins = pack(np.array(lengths), 20)
    assert sorted(number for one in bins for number in one) == list(range(len(lengths)))
    totals = [sum(lengths[number] for number in one) for one in bins]
    assert max(totals) <= 20
    assert len(bins) <= 2 * sum(lengths) / 20 + 1  # at most one is half empty


def test_conversations_of_empty_replies_are_refused(tmp_path: Path) -> None:
    empty = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]}
    (tmp_path / "chats.jsonl").write_bytes(b"\n".join([to_json_bytes(empty).replace(b"\n", b"")] * 3))
    with pytest.raises(NormscopeError, match="have no text in the train part"):
        prepare(tmp_path / "chats.jsonl", tmp_path / "data", tokenizer="bytes")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"messages": []}', "must be a list of messages"),
        ('{"messages": "hi"}', "must be a list of messages"),
        ('{"messages": [5]}', "message 1 is 5, not an object"),
        ('{"messages": [{"role": "usr", "content": "a"}]}', 'message 1 has the role "usr"'),
        ('{"messages": [{"role": "user", "content": [1]}]}', "expected a string"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "the assistant writes nothing"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "lone surrogate"),
        ('{"messages": [{"role": "user", "content": "<|end|>"}]}', "contains the special token"),
        ('{"text": "a"}', "expected an object with 'messages'"),
        ("{", "invalid JSON"),
        ("[" * 100_000, "invalid JSON"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, line: str, problem: str) -> None:
    good = to_json_bytes({"messages": chat(1)}).replace(b"\n", b"")
    (tmp_path / "chats.jsonl").write_bytes(good + b"\n\n" + line.encode() + b"\n")
    with pytest.raises(NormscopeError, match=f"line 3: .*{problem}"):
        prepare(tmp_path / "chats.jsonl", tmp_path / "data", tokenizer="bytes")


def test_text_and_conversations_are_not_mixed_and_a_tokenizer_is_needed(tmp_path: Path, corpus: Corpus) -> None:
    chats = corpus.folder.parent / "chats.jsonl"
    (tmp_path / "text.txt").write_text("text")
    with pytest.raises(NormscopeError, match="has no conversations, but other sources do"):
        prepare([chats, tmp_path / "text.txt"], tmp_path / "data", tokenizer="bytes")
    with pytest.raises(NormscopeError, match="conversations need a tokenizer that exists"):
        prepare(chats, tmp_path / "data", tokenizer="bpe")
