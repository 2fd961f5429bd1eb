"""Resolve sources to files: paths, folders, glob patterns, and `-` for standard input."""

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
"""The name of standard input."""

_FORMATS: dict[str, Format] = {
    ".txt": "text",
    ".md": "text",
    ".py": "text",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
}
KNOWN_SUFFIXES = ", ".join(_FORMATS)
_OWN_OUTPUT = ({"config.json", "metrics.jsonl"}, {"corpus.json", "train.bin"})
"""Files that identify a run or a prepared corpus: normscope does not train on its own output."""


@dataclass(frozen=True)
class SourceFile:
    """A source file.

    Args:
        name: the name the user gave.
        path: its path.
        format: file format.
        column: column or field that holds the text (.jsonl and .parquet).
    """

    name: str
    path: Path
    format: Format
    column: str = "text"


@dataclass
class _FoundSources:
    """The files found so far."""

    column: str
    files: dict[Path, SourceFile] = field(default_factory=dict)  # by resolved path, in order
    notices: list[str] = field(default_factory=list)

    def add(self, path: Path) -> None:
        check_encodable(path.resolve(), "a text")
        source = SourceFile(str(path), path, _FORMATS.get(path.suffix.lower(), "text"), self.column)
        first = self.files.setdefault(path.resolve(), source)
        if first is not source:
            self.notices.append(f"{source.name} is the same file as {first.name} and is read only once")


def find_sources(
    names: str | Path | Sequence[str | Path], *, column: str = "text", piped: Path | None = None
) -> tuple[list[SourceFile], list[str]]:
    """Return the files that the names refer to, and notices for the user.

    Files keep the order of the names; those of a folder or pattern are sorted. Folders are searched recursively for
    files with a known suffix, without hidden files, runs and prepared corpora. A file named explicitly may have
    any suffix.

    Args:
        names: files, folders and patterns such as "books/**/*.txt"; "-" for standard input.
        column: column of .jsonl and .parquet files that holds the text.
        piped: the file that holds the standard input.
    """
    names = [names] if isinstance(names, str | os.PathLike) else names
    if not isinstance(column, str) or not column:
        raise ConfigError(f"column={column!r} must be a non-empty string\nfix: column='text'")
    found_sources = _FoundSources(column)
    for name in names:
        if not isinstance(name, str | os.PathLike):
            raise DtypeError(f"a source must be a path, but got {name!r}\nfix: pass text as files")
        path = Path(name)
        if str(name) == STDIN and piped is not None:
            found_sources.files[piped] = SourceFile(STDIN, piped, "text")
        elif path.is_dir():
            _add_folder(found_sources, path)
        elif path.is_file():
            found_sources.add(path)
        elif path.exists():
            raise FileError(
                f"{name} is a pipe or a device, but sources are read several times\n"
                f"fix: use standard input: cat my.txt | normscope train -"
            )
        elif glob.has_magic(str(name)):
            _add_pattern(found_sources, str(name))
        else:
            raise FileError(f"there is no file or folder {name}\nfix: {_suggestion(path)}")
    if not found_sources.files:
        raise FileError("no sources given\nfix: name a file, a folder, a pattern such as 'books/*.txt', or '-'")
    return list(found_sources.files.values()), found_sources.notices


def _add_folder(found_sources: _FoundSources, folder: Path) -> None:
    everything, own_output = _files_below(folder)
    known = [path for path in everything if path.suffix.lower() in _FORMATS]
    if folder in own_output:
        raise FileError(f"the folder {folder} is a run or a prepared corpus, not text\nfix: name a folder with text")
    if not known:
        raise FileError(
            f"the folder {folder} has no text files ({KNOWN_SUFFIXES})\n"
            f"fix: name another folder, or name files with other suffixes explicitly or as a pattern: {folder}/*.log"
        )
    for path in known:
        found_sources.add(path)
    _note_skipped(found_sources, str(folder), [path for path in everything if path.suffix.lower() not in _FORMATS])
    _note_own_output(found_sources, folder, own_output)


def _files_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files below a folder and, separately, the runs and prepared corpora below it, which are skipped.

    Hidden files are skipped, and links to folders are not followed. Both lists are sorted.
    """

    def on_error(error: OSError) -> None:
        raise FileError(f"cannot read the folder {error.filename}: {error.strerror}") from error

    found, own_output = [], []
    for root, folders, files in os.walk(folder, onerror=on_error):
        if any(names <= set(files) for names in _OWN_OUTPUT):
            own_output.append(Path(root))
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(root, name) for name in files if not name.startswith(".")]
    return sorted(path for path in found if path.is_file()), sorted(own_output)


def _add_pattern(found_sources: _FoundSources, pattern: str) -> None:
    """Add the files that match a pattern; unknown suffixes only if the pattern names them, as in '*.log'."""
    matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]
    files = [path for path in matches if path.is_file()]
    suffixes = {*_FORMATS, Path(pattern).suffix.lower()}
    taken = [path for path in files if path.suffix.lower() in suffixes]
    if not taken:
        raise FileError(
            f"no text file matches {pattern}\n"
            f"fix: check the pattern; for suffixes other than {KNOWN_SUFFIXES}, name the suffix: '*.log'"
        )
    for path in taken:
        found_sources.add(path)
    _note_skipped(found_sources, pattern, [path for path in files if path.suffix.lower() not in suffixes])


def _note_skipped(found_sources: _FoundSources, name: str, skipped: Sequence[Path]) -> None:
    if skipped:
        shown = ", ".join(path.name for path in skipped[:3]) + ", …" * (len(skipped) > 3)
        files = "1 file" if len(skipped) == 1 else f"{len(skipped)} files"
        found_sources.notices.append(f"{name}: skipped {files} with other suffixes than {KNOWN_SUFFIXES}: {shown}")


def _note_own_output(found_sources: _FoundSources, folder: Path, own_output: Sequence[Path]) -> None:
    if own_output:
        shown = ", ".join(str(path.relative_to(folder)) for path in own_output[:3]) + ", …" * (len(own_output) > 3)
        folders = "1 run or prepared corpus" if len(own_output) == 1 else f"{len(own_output)} runs or prepared corpora"
        found_sources.notices.append(f"{folder}: skipped {folders}: {shown}")


def _suggestion(path: Path) -> str:
    """Suggest a similar name in the same folder."""
    parent = path.parent
    names = [other.name for other in parent.iterdir()] if parent.is_dir() else []
    close = [name for name in difflib.get_close_matches(path.name, names) if _similar(Path(name).stem, path.stem)]
    if not close:
        return "check the path; patterns such as 'books/*.txt' work, too"
    return f"did you mean {str(parent / close[0])!r}?"


def _similar(one: str, other: str) -> bool:
    """Whether two names are similar, ignoring their suffixes."""
    return difflib.SequenceMatcher(None, one, other).ratio() >= 0.65


def column_advice(names: Iterable[str]) -> str:
    """Suggest a column, given those that hold text.

    >>> column_advice(["txt"]), column_advice(["title", "body"])
    ('--column txt', '--column NAME, with the column that holds the text')
    """
    known = list(names)
    return f"--column {shlex.quote(known[0]) if len(known) == 1 else 'NAME, with the column that holds the text'}"
