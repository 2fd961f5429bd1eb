"""Source files: paths, folders, glob patterns and `-` for standard input; fingerprints to detect later changes."""

import difflib
import glob
import hashlib
import os
import shlex
import stat
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from normscope.checks import as_path, check_encodable, short_repr
from normscope.errors import ArgumentTypeError, ConfigError, FileError

Format = Literal["text", "jsonl", "parquet"]

STDIN = "-"
"""The name of standard input."""

_FORMATS: dict[str, Format] = {".txt": "text", ".md": "text", ".py": "text", ".jsonl": "jsonl", ".parquet": "parquet"}
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

    def add(self, paths: Iterable[Path]) -> None:
        for path in paths:
            check_encodable(path.resolve(), "a text")
            source = SourceFile(str(path), path, _FORMATS.get(path.suffix.lower(), "text"), self.column)
            first = self.files.setdefault(path.resolve(), source)
            if first is not source:
                self.notices.append(f"{source.name} is the same file as {first.name} and is read only once")

    def add_known(self, where: str | Path, files: Sequence[Path], suffixes: Collection[str], if_none: str) -> None:
        """Add the files with one of these suffixes, and note the others; raise if there are none to add."""
        taken = [path for path in files if path.suffix.lower() in suffixes]
        if not taken:
            raise FileError(if_none)
        self.add(taken)
        skipped = [path.name for path in files if path.suffix.lower() not in suffixes]
        self.note_skipped(where, "file", "files", skipped, f" with other suffixes than {KNOWN_SUFFIXES}")

    def note_skipped(self, where: str | Path, one: str, several: str, names: Sequence[str], suffix: str = "") -> None:
        if names:
            count = f"1 {one}" if len(names) == 1 else f"{len(names)} {several}"
            shown = ", ".join(names[:3]) + ", …" * (len(names) > 3)
            self.notices.append(f"{where}: skipped {count}{suffix}: {shown}")


def source_names(sources: object) -> list[str | Path]:
    """Return one or several paths as a list."""
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    if not isinstance(sources, Iterable):
        raise ArgumentTypeError(f"sources must be paths (str or Path), but got {short_repr(sources)}")
    names = list(sources)
    for name in names:
        if name != STDIN:
            as_path(name, "a text")
    return names


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
    if not isinstance(column, str) or not column:
        raise ConfigError(f"column={column!r} must be a non-empty string\nfix: column='text'")
    found = _FoundSources(column)
    for name in source_names(names):
        path = Path(name)
        if str(name) == STDIN and piped is not None:
            found.files[piped] = SourceFile(STDIN, piped, "text")
        elif path.is_dir():
            _add_folder(found, path)
        elif path.is_file():
            found.add([path])
        elif path.exists():
            raise FileError(
                f"{name} is a pipe or a device, but sources are read several times\n"
                f"fix: use standard input: cat my.txt | normscope train -"
            )
        elif glob.has_magic(str(name)):
            _add_pattern(found, str(name))
        else:
            raise FileError(f"there is no file or folder {name}\nfix: {_suggestion(path)}")
    if not found.files:
        raise FileError("no sources given\nfix: name a file, a folder, a pattern such as 'books/*.txt', or '-'")
    return list(found.files.values()), found.notices


def _add_folder(found: _FoundSources, folder: Path) -> None:
    everything, own_output = _files_below(folder)
    if folder in own_output:
        raise FileError(f"the folder {folder} is a run or a prepared corpus, not text\nfix: name a folder with text")
    none = (
        f"the folder {folder} has no text files ({KNOWN_SUFFIXES})\n"
        f"fix: name another folder, or name files with other suffixes explicitly or as a pattern: {folder}/*.log"
    )
    found.add_known(folder, everything, _FORMATS, none)
    own = [str(path.relative_to(folder)) for path in own_output]
    found.note_skipped(folder, "run or prepared corpus", "runs or prepared corpora", own)


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


def _add_pattern(found: _FoundSources, pattern: str) -> None:
    """Add the files that match a pattern; unknown suffixes only if the pattern names them, as in '*.log'."""
    files = [path for match in sorted(glob.glob(pattern, recursive=True)) if (path := Path(match)).is_file()]
    none = (
        f"no text file matches {pattern}\n"
        f"fix: check the pattern; for suffixes other than {KNOWN_SUFFIXES}, name the suffix: '*.log'"
    )
    found.add_known(pattern, files, {*_FORMATS, Path(pattern).suffix.lower()}, none)


def _suggestion(path: Path) -> str:
    """Suggest a similar name in the same folder; the suffixes alone do not make two names similar."""
    names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    for name in difflib.get_close_matches(path.name, names):
        if difflib.SequenceMatcher(None, Path(name).stem, path.stem).ratio() >= 0.65:
            return f"did you mean {str(path.parent / name)!r}?"
    return "check the path; glob patterns such as 'books/*.txt' work too"


def column_advice(names: Iterable[str]) -> str:
    """Suggest a column, given those that hold text.

    >>> column_advice(["txt"]), column_advice(["title", "body"])
    ('--column txt', '--column NAME, with the column that holds the text')
    """
    known = list(names)
    return f"--column {shlex.quote(known[0]) if len(known) == 1 else 'NAME, with the column that holds the text'}"


SourceChange = Literal["changed", "missing"]


@dataclass(frozen=True)
class SourceFingerprint:
    """A source file at the time it was read.

    Args:
        name: the name the user gave.
        path: absolute path.
        size: size in bytes.
        mtime_ns: modification time in nanoseconds.
        sha256: checksum of the contents.
    """

    name: str
    path: str
    size: int
    mtime_ns: int
    sha256: str


def changed_sources(fingerprints: Iterable[SourceFingerprint]) -> dict[str, SourceChange]:
    """Return the names of the files that have changed or are missing.

    A file with the same size and modification time counts as unchanged; with another time, its checksum decides.
    Standard input cannot be read again and never counts as changed.
    """
    found: dict[str, SourceChange] = {}
    for was in fingerprints:
        if was.name == STDIN:
            continue
        change = _change(Path(was.path), was)
        # A file that was moved together with the corpus is found under its relative name. An unrelated file of that
        # name in the current folder does not count.
        if change is not None and not (change == "missing" and _change(Path(was.name), was) is None):
            found[was.name] = change
    return found


def _change(path: Path, was: SourceFingerprint) -> SourceChange | None:
    try:
        now = path.stat()
        if not stat.S_ISREG(now.st_mode):
            return "missing"
        if now.st_size != was.size:
            return "changed"
        return None if now.st_mtime_ns == was.mtime_ns or file_sha256(path) == was.sha256 else "changed"
    except OSError:  # missing, or not readable
        return "missing"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
