"""The members of a zip file that are stored without compression, which torch.save writes so that they can be mapped.

Python's zipfile would read a directory of any length into memory and decompress whatever it claims to be. Here the
directory must lie at the end of the file, and its members must be uncompressed, inside the file and apart.
"""

import struct
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from normscope.interop.files.tensor_file import TensorFile
from normscope.storage.json_files import MIB

MAX_DIRECTORY_BYTES = 4 * MIB
"""Limit of the directory, which has about 100 bytes per member."""
MAX_MEMBERS = 20_000
"""Limit of members, of which each tensor is one, and those of the optimizer's state are two more."""
_END = struct.Struct("<4s4H2IH")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_64 = struct.Struct("<4sIQI")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_IN_EXTRA_16, _IN_EXTRA_32 = 0xFFFF, 0xFFFFFFFF
"""A field with this value has the real one in the 64-bit extension."""


class Member(NamedTuple):
    """A file in the archive.

    Args:
        offset, size: where its data is.
        checksum: its CRC-32.
    """

    offset: int
    size: int
    checksum: int


class _Entry(NamedTuple):
    name: str
    header: int
    size: int
    checksum: int


def zip_members(file: TensorFile) -> dict[str, Member]:
    """The members of a zip file by name."""
    start, length, count = _locate(file)
    if length > MAX_DIRECTORY_BYTES:
        raise _problem(file, f"its directory has {length:,} bytes, more than the limit of {MAX_DIRECTORY_BYTES:,}")
    if count > MAX_MEMBERS:
        raise _problem(file, f"it has {count:,} members, more than the limit of {MAX_MEMBERS:,}")
    entries = list(islice(_entries(file, file.read(start, length)), count + 1))
    if len(entries) != count:
        raise _problem(file, f"its directory lists {len(entries)} members instead of {count}")
    members: dict[str, Member] = {}
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header):
        if entry.header < end:
            raise _problem(file, f"its member {entry.name!a:.80} overlaps another one")
        if entry.name in members:
            raise _problem(file, f"two members have the name {entry.name!a:.80}")
        data = _data_offset(file, entry)
        end = data + entry.size
        if end > start:
            raise _problem(file, f"its member {entry.name!a:.80} of {entry.size:,} bytes reaches into the directory")
        members[entry.name] = Member(data, entry.size, entry.checksum)
    return members


def _problem(file: TensorFile, text: str) -> Exception:
    return file.problem(f"is not a valid zip file: {text}")


def _locate(file: TensorFile) -> tuple[int, int, int]:
    """Offset, length and number of entries of the directory."""
    tail_start = max(0, file.size - _END.size - 0xFFFF)
    tail = file.read(tail_start, file.size - tail_start)
    at = tail.rfind(b"PK\5\6")
    if at < 0 or at + _END.size > len(tail):
        raise _problem(file, "it has no directory at its end; perhaps it is incomplete")
    _, disk, first_disk, here, count, length, start, comment = _END.unpack_from(tail, at)
    end = tail_start + at
    if end + _END.size + comment != file.size:
        raise _problem(file, "data follows its directory")
    locator = end - _LOCATOR_64.size
    if locator >= 0 and file.read(locator, 4) == b"PK\6\7":
        _, disk, end, _ = _LOCATOR_64.unpack(file.read(locator, _LOCATOR_64.size))
        if end + _END_64.size > locator:
            raise _problem(file, "its 64-bit directory is not where it says")
        record = _END_64.unpack(file.read(end, _END_64.size))
        if record[0] != b"PK\6\6":
            raise _problem(file, "its 64-bit directory is not where it says")
        _, _, _, _, disk, first_disk, here, count, length, start = record
    if disk or first_disk or here != count:
        raise _problem(file, "it is a part of a split archive")
    if start + length != end:
        raise _problem(file, f"its directory of {length:,} bytes at offset {start:,} does not end at {end:,}")
    return start, length, count


def _entries(file: TensorFile, directory: bytes) -> Iterator[_Entry]:
    """The entries of the directory, which say that their members are stored as they are."""
    position = 0
    while position < len(directory):
        if position + _ENTRY.size > len(directory) or directory[position : position + 4] != b"PK\1\2":
            raise _problem(file, f"its directory is damaged at entry offset {position:,}")
        fields = _ENTRY.unpack_from(directory, position)
        (flags, method), (checksum, packed, size), disk, header = fields[3:5], fields[7:10], fields[13], fields[16]
        name_length, extra_length, comment_length = fields[10:13]
        position += _ENTRY.size
        name = _name(file, directory[position : position + name_length])
        extra = directory[position + name_length : position + name_length + extra_length]
        position += name_length + extra_length + comment_length
        if position > len(directory):
            raise _problem(file, "its directory is damaged at its end")
        size, packed, header, disk = _from_extra(file, name, extra, (size, packed, header, disk))
        if flags & 1:
            raise _problem(file, f"its member {name!a:.80} is encrypted")
        if method != 0 or packed != size:
            raise _problem(file, f"its member {name!a:.80} is compressed, which torch.save never does")
        if disk:
            raise _problem(file, "it is a part of a split archive")
        yield _Entry(name, header, size, checksum)


def _name(file: TensorFile, data: bytes) -> str:
    try:
        name = data.decode()
    except UnicodeDecodeError:
        raise _problem(file, f"the name {data!r:.80} of a member is not UTF-8") from None
    if not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise _problem(file, f"a member has the name {name!a:.80}")
    return name


def _from_extra(file: TensorFile, name: str, extra: bytes, fields: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Replace the fields that are too large for the entry by those of its 64-bit extension."""
    limits = (_IN_EXTRA_32, _IN_EXTRA_32, _IN_EXTRA_32, _IN_EXTRA_16)
    if not any(field == limit for field, limit in zip(fields, limits, strict=True)):
        return fields
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        data, position = extra[position + 4 : position + 4 + length], position + 4 + length
        if kind == 1:
            wanted = "".join("QQQI"[i] for i in range(4) if fields[i] == limits[i])
            if len(data) < struct.calcsize(f"<{wanted}"):
                break
            found = iter(struct.unpack_from(f"<{wanted}", data))
            return tuple(next(found) if field == limit else field for field, limit in zip(fields, limits, strict=True))
    raise _problem(file, f"its member {name!a:.80} has no sizes")


def _data_offset(file: TensorFile, entry: _Entry) -> int:
    """Where the data of a member starts, behind its own header, which must agree with the directory."""
    fields = _LOCAL.unpack(file.read(entry.header, _LOCAL.size))
    (signature, flags, method), at = (fields[0], *fields[2:4]), entry.header + _LOCAL.size
    name_length: int = fields[9]
    extra_length: int = fields[10]
    if (signature, flags & 1, method) != (b"PK\3\4", 0, 0) or file.read(at, name_length) != entry.name.encode():
        raise _problem(file, f"the header of its member {entry.name!a:.80} disagrees with the directory")
    return at + name_length + extra_length
