"""`normscope prepare`: tokenize text once, for several runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from normscope.cli.options import Flag, OptionalFloat, OptionalInt, read_arguments
from normscope.cli.training_output import progress_bar
from normscope.data.prepare import prepare
from normscope.data.write_corpus import check_output_folder


@dataclass(frozen=True)
class Prepare:
    """Tokenize text into a folder that `normscope train FOLDER` accepts instead of text.

    For example: normscope prepare books/ --out tokens --tokenizer bpe --vocab-size 4096
    """

    sources: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="TEXT ...", help_behavior_hint="")]
    """Files, folders or glob patterns (.txt .md .py .jsonl .parquet), or - for stdin."""

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """Output folder."""

    tokenizer: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """auto (chosen for the text), characters, bytes, bpe, or the path of a tokenizer.json."""

    vocab_size: OptionalInt = None
    """Vocabulary size of bpe (default 2048; auto uses less for a small corpus)."""

    allow_special: Flag = False
    """Parse <|endoftext|> and other special tokens in the text."""

    column: Annotated[str, tyro.conf.arg(metavar="NAME")] = "text"
    """Text column of .jsonl and .parquet files."""

    split: Literal["random", "tail"] = "random"
    """Validation split: random chunks, or the end of the text."""

    val_fraction: OptionalFloat = None
    """Fraction of the text held out for validation (default 0.1, at most 1 MB)."""

    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Random seed of the validation split."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Prepare, "prepare", arguments)
    check_output_folder(command.out)
    with progress_bar() as progress:
        corpus = prepare(
            command.sources,
            command.out,
            tokenizer=command.tokenizer,
            vocab_size=command.vocab_size,
            column=command.column,
            seed=command.seed,
            split=command.split,
            val_fraction=command.val_fraction,
            allow_special=command.allow_special,
            progress=progress,
        )
    for name, part in (("training", corpus.record.train), ("validation", corpus.record.validation)):
        documents = f"{part.documents:>9,} document{'' if part.documents == 1 else 's'}"
        print(f"{name:10}  {part.tokens:>13,} tokens  {part.bytes:>13,} bytes  {documents}")
    print(f"vocabulary  {corpus.tokenizer.vocab_size:>13,} tokens, {corpus.tokenizer.kind}")
    for notice in corpus.notices:
        print(f"note: {notice}")
    print(f"train on it with: normscope train {command.out}")
