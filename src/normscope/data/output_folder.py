"""Check an output folder: it must be empty, or hold only the leftovers of an interrupted preparation."""

from pathlib import Path

from normscope.data.corpus import TOKENIZER_NAME, part_name
from normscope.data.corpus_record import RECORD_NAME
from normscope.data.split import PARTS
from normscope.errors import FileError


def check_output_folder(folder: str | Path) -> None:
    """Raise if writing a corpus to this folder would overwrite files or mix with unrelated ones.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_output_folder(folder)
    ...     size = (Path(folder) / "notes.txt").write_text("mine")
    ...     try:
    ...         check_output_folder(folder)
    ...     except FileError as error:
    ...         print(str(error).replace(folder, "FOLDER"))
    FOLDER is not empty: it contains notes.txt
    fix: name a new folder with --out
    """
    folder = Path(folder)
    if not folder.is_dir():
        return
    names = sorted(path.name for path in folder.iterdir())
    if RECORD_NAME in names:
        raise FileError(
            f"{folder} already holds a prepared corpus, which runs may depend on\n"
            f"fix: name another folder with --out, or delete this one if no run needs it"
        )
    leftovers = {TOKENIZER_NAME, *map(part_name, PARTS)}  # the record is written last
    unrelated = [name for name in names if name not in leftovers and not name.startswith(".")]
    if unrelated:
        raise FileError(
            f"{folder} is not empty: it contains {', '.join(unrelated[:3])}\nfix: name a new folder with --out"
        )
