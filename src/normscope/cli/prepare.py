"""`normscope prepare`: tokenize text once, for several runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from normscope.cli.options import Folder, Int, Quiet, given, option, read_arguments
from normscope.cli.train import DataOptions


@dataclass(frozen=True)
class Prepare:
    """Tokenize text into a folder that `normscope train FOLDER` accepts instead of text.

    For example: normscope prepare books/ --out tokens --tokenizer bpe --vocab-size 4096
    """

    sources: Annotated[tyro.conf.Positional[tuple[str, ...]], option("TEXT ...")]
    """Files, folders or glob patterns (.txt .md .py .jsonl .parquet), or - for stdin."""

    out: Folder
    """Output folder."""

    seed: Int = 0
    """Random seed of the validation split."""

    quiet: Quiet = False
    """Print nothing."""

    data: DataOptions = field(default_factory=DataOptions)


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Prepare, "prepare", arguments)
    from normscope.data.prepare import prepare
    from normscope.data.write_corpus import check_output_folder
    from normscope.render.streaming import reading_progress

    check_output_folder(command.out)
    options = {"tokenizer": "auto", **given(command.data)}
    with reading_progress(command.quiet) as progress:
        corpus = prepare(command.sources, command.out, seed=command.seed, progress=progress, **options)
    if command.quiet:
        return
    for name, part in (("training", corpus.record.train), ("validation", corpus.record.validation)):
        documents = f"{part.documents:>9,} document{'' if part.documents == 1 else 's'}"
        print(f"{name:10}  {part.tokens:>13,} tokens  {part.bytes:>13,} bytes  {documents}")
    print(f"vocabulary  {corpus.tokenizer.vocab_size:>13,} tokens, {corpus.tokenizer.kind}")
    for notice in corpus.notices:
        print(f"note: {notice}")
    print(f"train on it with: normscope train {command.out}")
