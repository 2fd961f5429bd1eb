"""`normscope prepare`: turn text into tokens once, for several runs to share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from normscope.cli.options import Flag, OptionalFloat, OptionalInt, read_arguments
from normscope.cli.training_output import preparation
from normscope.data.output_folder import check_output_folder
from normscope.data.prepare import prepare


@dataclass(frozen=True)
class Prepare:
    """Turn text into tokens, in a folder that `normscope train FOLDER` takes in the place of text.

    For instance: normscope prepare books/ --out tokens --tokenizer bpe --vocab-size 4096
    """

    sources: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="TEXT ...", help_behavior_hint="")]
    """Files, folders or patterns (.txt .md .py .jsonl .parquet), or - for what is piped in."""

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """Where the tokens go."""

    tokenizer: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """auto (what suits the text), characters, bytes, bpe, or the path of a tokenizer.json."""

    vocab_size: OptionalInt = None
    """How many tokens bpe learns; 2048 unless told otherwise, fewer with auto if the text is short."""

    allow_special: Flag = False
    """Let <|endoftext|> in the text end a document, and other special names stand for their tokens."""

    column: Annotated[str, tyro.conf.arg(metavar="NAME")] = "text"
    """Where the text is in .jsonl and .parquet files."""

    split: Literal["random", "tail"] = "random"
    """What is held out for validation: pieces from everywhere, or the end of the text."""

    val_fraction: OptionalFloat = None
    """How much of the text is held out; a tenth, or a megabyte if that is less."""

    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Decides which pieces are held out."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Prepare, "prepare", arguments)
    check_output_folder(command.out)
    with preparation() as progress:
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
