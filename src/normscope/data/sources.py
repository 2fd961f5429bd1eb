"""What a user names, as a list of files: files, folders, patterns, and `-` for what is piped in."""

import difflib
import glob
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from normscope.checks import check_encodable
from normscope.errors import ConfigError, DtypeError, FileError

Format = Literal["text", "jsonl", "parquet"]

STDIN = "-"
"""The name of what is piped in."""

_FORMATS: dict[str, Format] = {
    ".txt": "text",
    ".md": "text",
    ".py": "text",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
}
KNOWN_SUFFIXES = ", ".join(_FORMATS)
_OURS = ({"config.json", "metrics.jsonl"}, {"corpus.json", "train.bin"})
"""The files by which a run and a prepared corpus are known: what normscope wrote itself is not for it to learn from."""


@dataclass(frozen=True)
class SourceFile:
    """A file to read.

    Args:
        name: what the user calls it.
        path: where it is.
        format: how documents lie in it.
        column: where the text is, in a file that has columns.
    """

    name: str
    path: Path
    format: Format
    column: str = "text"


@dataclass
class _Finding:
    """What has been found so far."""

    column: str
    files: dict[Path, SourceFile] = field(default_factory=dict)  # by their real path, in the order in which they came
    notices: list[str] = field(default_factory=list)

    def add(self, path: Path) -> None:
        check_encodable(path.resolve(), "a text")
        source = SourceFile(str(path), path, _FORMATS.get(path.suffix.lower(), "text"), self.column)
        first = self.files.setdefault(path.resolve(), source)
        if first is not source:
            self.notices.append(f"{source.name} is {first.name}, which is there already, and is read once")


def find_sources(
    names: str | Path | Sequence[str | Path], *, column: str = "text", piped: Path | None = None
) -> tuple[list[SourceFile], list[str]]:
    """The files that these names stand for, and what the user should know of it.

    They come in the order of their names, those of a folder or a pattern sorted. From a folder come the files with a
    known ending, from all depths; hidden ones stay out, and so do runs and prepared corpora. A file that is named by
    itself may have any ending.

    Args:
        names: files, folders and patterns such as "books/**/*.txt"; "-" for what is piped in.
        column: the column of a .jsonl or .parquet file that has the text.
        piped: the file that holds what was piped in.
    """
    names = [names] if isinstance(names, str | os.PathLike) else names
    if not isinstance(column, str) or not column:
        raise ConfigError(f"column={column!r} must be the name of a column\nfix: column='text'")
    finding = _Finding(column)
    for name in names:
        if not isinstance(name, str | os.PathLike):
            raise DtypeError(f"a source is a path, but got {name!r}\nfix: give texts as files")
        path = Path(name)
        if str(name) == STDIN and piped is not None:
            finding.files[piped] = SourceFile(STDIN, piped, "text")
        elif path.is_dir():
            _add_folder(finding, path)
        elif path.is_file():
            finding.add(path)
        elif path.exists():
            raise FileError(
                f"{name} is no file but a pipe or a device, which can be read once, and a text is read several times\n"
                f"fix: pipe it in, and name it '-': cat my.txt | normscope train -"
            )
        elif glob.has_magic(str(name)):
            _add_pattern(finding, str(name))
        else:
            raise FileError(f"there is no file or folder {name}\nfix: {_advice(path)}")
    if not finding.files:
        raise FileError("no text was named\nfix: name a file, a folder, a pattern such as 'books/*.txt', or '-'")
    return list(finding.files.values()), finding.notices


def _add_folder(finding: _Finding, folder: Path) -> None:
    everything, ours = _files_below(folder)
    known = [path for path in everything if path.suffix.lower() in _FORMATS]
    if folder in ours:
        raise FileError(
            f"the folder {folder} has no text: it holds a run or a prepared corpus\nfix: name a folder with text"
        )
    if not known:
        raise FileError(
            f"the folder {folder} has no text: no file whose ending is one of {KNOWN_SUFFIXES}\n"
            f"fix: name another folder, or name files of another kind one by one or as a pattern: {folder}/*.log"
        )
    for path in known:
        finding.add(path)
    _note_skipped(finding, str(folder), [path for path in everything if path.suffix.lower() not in _FORMATS])
    _note_ours(finding, folder, ours)


def _files_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files of a folder and of those in it, without what is hidden and what links to folders lead to; and those
    folders in it that normscope wrote, whose files stay out. Both are sorted.
    """

    def refuse(error: OSError) -> None:
        raise FileError(f"cannot read the folder {error.filename}: {error.strerror}") from error

    found, ours = [], []
    for root, folders, files in os.walk(folder, onerror=refuse):
        if any(marks <= set(files) for marks in _OURS):
            ours.append(Path(root))
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(root, name) for name in files if not name.startswith(".")]
    return sorted(path for path in found if path.is_file()), sorted(ours)


def _add_pattern(finding: _Finding, pattern: str) -> None:
    """The files that a pattern matches; those of an unknown ending only if the pattern itself has it, as in '*.log'."""
    matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]
    files = [path for path in matches if path.is_file()]
    endings = {*_FORMATS, Path(pattern).suffix.lower()}
    taken = [path for path in files if path.suffix.lower() in endings]
    if not taken:
        raise FileError(
            f"no text file matches {pattern}\n"
            f"fix: check the pattern; it takes files that end in {KNOWN_SUFFIXES}, and others if it says so: '*.log'"
        )
    for path in taken:
        finding.add(path)
    _note_skipped(finding, pattern, [path for path in files if path.suffix.lower() not in endings])


def _note_skipped(finding: _Finding, name: str, skipped: Sequence[Path]) -> None:
    if skipped:
        shown = ", ".join(path.name for path in skipped[:3]) + ", …" * (len(skipped) > 3)
        count = "1 file skipped that does" if len(skipped) == 1 else f"{len(skipped)} files skipped that do"
        finding.notices.append(f"{name}: {count} not end in {KNOWN_SUFFIXES}: {shown}")


def _note_ours(finding: _Finding, folder: Path, ours: Sequence[Path]) -> None:
    if ours:
        shown = ", ".join(str(path.relative_to(folder)) for path in ours[:3]) + ", …" * (len(ours) > 3)
        count = "1 folder skipped that holds" if len(ours) == 1 else f"{len(ours)} folders skipped that hold"
        finding.notices.append(f"{folder}: {count} a run or a prepared corpus: {shown}")


def _advice(path: Path) -> str:
    """What was meant, if a name in the same folder is close to it."""
    parent = path.parent
    names = [other.name for other in parent.iterdir()] if parent.is_dir() else []
    close = [name for name in difflib.get_close_matches(path.name, names) if _alike(Path(name).stem, path.stem)]
    if not close:
        return "check the path; a pattern such as 'books/*.txt' will do too"
    return f"did you mean {str(parent / close[0])!r}?"


def _alike(one: str, other: str) -> bool:
    """Whether two names are, their endings aside: nearly all texts share those."""
    return difflib.SequenceMatcher(None, one, other).ratio() >= 0.65


def column_advice(names: Iterable[str]) -> str:
    """Which column to name, among those of a file that hold text.

    >>> column_advice(["txt"]), column_advice(["title", "body"])
    ('--column txt', '--column NAME, with the one that has the text')
    """
    known = list(names)
    return f"--column {shlex.quote(known[0]) if len(known) == 1 else 'NAME, with the one that has the text'}"
