"""Versions of JSON file formats, and migrations from older ones.

Every JSON file has a field `format`. A file of an older format is migrated when it is read, one version at a time. A
file of a newer format is an error. A field added with a default needs no new format: readers use the default if the
field is missing. Renamed, removed or reinterpreted fields need a new format and a migration. Unknown fields are errors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from normscope.checks import is_integer

Content = dict[str, Any]


class FormatError(Exception):
    """A format that cannot be read; the message follows the name of the file."""


@dataclass(frozen=True)
class FileFormat:
    """The current format of a file, and migrations from older formats.

    Args:
        version: The version that is written.
        migrations: For each older version that can be read, a function that converts it to the next version.

    >>> book = FileFormat(3, {1: lambda book: rename_fields(book, {"writer": "author"}), 2: lambda book: book})
    >>> book.migrate({"format": 1, "writer": "Ada"})
    {'author': 'Ada'}
    >>> book.migrate({"format": 4})
    Traceback (most recent call last):
    normscope.storage.file_format.FormatError: has format 4, but this version of normscope reads formats 1 to 3
    fix: update normscope
    """

    version: int
    migrations: Mapping[int, Callable[[Content], Content]] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        return min(self.migrations, default=self.version)

    def migrate(self, content: Mapping[str, Any]) -> Content:
        """Convert content of any readable format to the current one, without the field `format`."""
        version: Any = content.get("format")
        if not is_integer(version, least=0):
            raise FormatError(f"has no valid format number: {version!r:.40}\nfix: restore it from a copy")
        if not self.oldest <= version <= self.version:
            known = f"formats {self.oldest} to {self.version}" if self.migrations else f"format {self.version}"
            fix = "update normscope" if version > self.version else "use the version of normscope that wrote it"
            raise FormatError(f"has format {version}, but this version of normscope reads {known}\nfix: {fix}")
        migrated = {name: value for name, value in content.items() if name != "format"}
        for old in range(version, self.version):
            migrated = self.migrations[old](migrated)
        return migrated


def rename_fields(content: Mapping[str, Any], names: Mapping[str, str]) -> Content:
    """Rename fields of a JSON object, keeping their order.

    >>> rename_fields({"rate": 0.1, "steps": 5}, {"rate": "lr"})
    {'lr': 0.1, 'steps': 5}
    """
    return {names.get(name, name): value for name, value in content.items()}
