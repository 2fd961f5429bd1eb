"""Where a corpus may go: into an empty folder, or into one that holds nothing but what a killed preparation left."""

from pathlib import Path

from normscope.data.corpus import TOKENIZER_NAME, part_name
from normscope.data.corpus_record import RECORD_NAME
from normscope.data.split import PARTS
from normscope.errors import FileError


def check_output_folder(folder: str | Path) -> None:
    """Refuse a folder in which something would be overwritten, or mixed with what belongs to others.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_output_folder(folder)
    ...     size = (Path(folder) / "notes.txt").write_text("mine")
    ...     try:
    ...         check_output_folder(folder)
    ...     except FileError as error:
    ...         print(str(error).replace(folder, "FOLDER"))
    FOLDER is not empty: it has notes.txt
    fix: tokens need a folder of their own; name a new one with --out
    """
    folder = Path(folder)
    if not folder.is_dir():
        return
    names = sorted(path.name for path in folder.iterdir())
    if RECORD_NAME in names:
        raise FileError(
            f"{folder} holds a prepared corpus already, and nothing is overwritten, for runs may learn from it\n"
            f"fix: another folder with --out; or delete this one first, if no run needs it any more"
        )
    leftovers = {TOKENIZER_NAME, *map(part_name, PARTS)}  # without the record, which is written last
    strange = [name for name in names if name not in leftovers and not name.startswith(".")]
    if strange:
        raise FileError(
            f"{folder} is not empty: it has {', '.join(strange[:3])}\n"
            f"fix: tokens need a folder of their own; name a new one with --out"
        )
