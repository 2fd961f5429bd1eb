"""Writing files: whole or not at all."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from normscope.errors import FileError


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file in one step: whoever reads it sees the old one or the new one, never a half.

    The text goes to a temporary file in the same folder first, which then takes the place of the old one.
    """
    target = Path(path).resolve()  # a link stays a link, and the file it points at is the one that changes
    if target.is_dir():
        raise FileError(f"cannot write {path}: it is a folder\nfix: name a file in it")
    if not target.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no folder {target.parent}\nfix: make the folder first")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # the bytes before the name: a power cut must not leave an empty file
        temporary.replace(target)
    except PermissionError as error:
        raise FileError(
            f"cannot write {path}: {target.parent} is read-only here\nfix: choose another folder"
        ) from error
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # after a success it is gone already
            temporary.unlink()
