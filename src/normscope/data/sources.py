"""What a user names, as a list of files: files, folders, patterns, and `-` for what is piped in."""

import difflib
import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from normscope.errors import ConfigError, DtypeError, FileError

Format = Literal["text", "jsonl", "parquet"]

PIPED = "-"
"""The name of what is piped in."""

_FORMATS: dict[str, Format] = {
    ".txt": "text",
    ".md": "text",
    ".py": "text",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
}
KNOWN = ", ".join(_FORMATS)


@dataclass(frozen=True)
class Source:
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
    files: dict[Path, Source] = field(default_factory=dict)  # by their real path, in the order in which they came
    notices: list[str] = field(default_factory=list)

    def add(self, path: Path) -> None:
        source = Source(str(path), path, _FORMATS.get(path.suffix.lower(), "text"), self.column)
        first = self.files.setdefault(path.resolve(), source)
        if first is not source:
            self.notices.append(f"{source.name} is {first.name}, which is there already, and is read once")


def find_sources(
    names: str | Path | Sequence[str | Path], *, column: str = "text", piped: Path | None = None
) -> tuple[list[Source], list[str]]:
    """The files that these names stand for, and what the user should know of it.

    They come in the order of their names, those of a folder or a pattern sorted. From a folder come the files with a
    known ending, from all depths; hidden ones stay out. A file that is named by itself may have any ending.

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
        if str(name) == PIPED and piped is not None:
            finding.files[piped] = Source(PIPED, piped, "text")
        elif path.is_dir():
            _add_folder(finding, path)
        elif path.exists():
            finding.add(path)
        elif glob.has_magic(str(name)):
            _add_pattern(finding, str(name))
        else:
            raise FileError(f"there is no file or folder {name}\nfix: {_advice(path)}")
    if not finding.files:
        raise FileError("no text was named\nfix: name a file, a folder, a pattern such as 'books/*.txt', or '-'")
    return list(finding.files.values()), finding.notices


def _add_folder(finding: _Finding, folder: Path) -> None:
    everything = list(_files_below(folder))
    known = [path for path in everything if path.suffix.lower() in _FORMATS]
    if not known:
        raise FileError(
            f"the folder {folder} has no text: no file whose ending is one of {KNOWN}\n"
            f"fix: name another folder, or name files of another kind one by one or as a pattern: {folder}/*.log"
        )
    for path in known:
        finding.add(path)
    _note_skipped(finding, str(folder), [path for path in everything if path.suffix.lower() not in _FORMATS])


def _files_below(folder: Path) -> Iterator[Path]:
    """The files of a folder and of those in it, sorted; without what is hidden and what links to folders lead to."""

    def refuse(error: OSError) -> None:
        raise FileError(f"cannot read the folder {error.filename}: {error.strerror}") from error

    found = []
    for root, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(root, name) for name in files if not name.startswith(".")]
    return iter(sorted(path for path in found if path.is_file()))


def _add_pattern(finding: _Finding, pattern: str) -> None:
    """The files that a pattern matches; those of an unknown ending only if the pattern itself has it, as in '*.log'."""
    matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]
    files = [path for path in matches if path.is_file()]
    endings = {*_FORMATS, Path(pattern).suffix.lower()}
    taken = [path for path in files if path.suffix.lower() in endings]
    if not taken:
        raise FileError(
            f"no text file matches {pattern}\n"
            f"fix: check the pattern; it takes files that end in {KNOWN}, and others if it says so: '*.log'"
        )
    for path in taken:
        finding.add(path)
    _note_skipped(finding, pattern, [path for path in files if path.suffix.lower() not in endings])


def _note_skipped(finding: _Finding, name: str, skipped: Sequence[Path]) -> None:
    if skipped:
        shown = ", ".join(path.name for path in skipped[:3]) + ", …" * (len(skipped) > 3)
        count = "1 file" if len(skipped) == 1 else f"{len(skipped)} files"
        finding.notices.append(f"{name}: {count} skipped that do not end in {KNOWN}: {shown}")


def _advice(path: Path) -> str:
    """What was meant, if a name in the same folder is close to it."""
    parent = path.parent
    names = [other.name for other in parent.iterdir()] if parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    return (
        f"did you mean {parent / close[0]}?" if close else "check the path; a pattern such as 'books/*.txt' will do too"
    )
