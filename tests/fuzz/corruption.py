"""Ways to damage a file, or to replace it by something hostile. All randomness comes from `rng`."""

import json
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Corruption = Callable[[Path, random.Random], None]


def flip_bit(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def change_bytes(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 8) if data else 0):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)


def truncate(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))] if data else b"")


def empty(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def delete(path: Path, _: random.Random) -> None:
    path.unlink()


def duplicate_part(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    first = rng.randrange(len(data) + 1)
    last = min(len(data), first + rng.choice([1, 8, 100, 4096]))
    path.write_bytes(data[:last] + data[first:])


def append(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.choice([b"\0", b"\n", b"{}", b"[" * 10, rng.randbytes(64)]))


def zero_block(path: Path, rng: random.Random) -> None:
    """A block of zeros, as after a power loss."""
    data = bytearray(path.read_bytes())
    first = rng.randrange(len(data)) if data else 0
    last = min(len(data), first + 512)
    data[first:last] = bytes(last - first)
    path.write_bytes(data)


def swap_with_neighbor(path: Path, rng: random.Random) -> None:
    others = [other for other in sorted(path.parent.iterdir()) if other.is_file() and other != path]
    if others:
        other = rng.choice(others)
        ours, theirs = path.read_bytes(), other.read_bytes()
        path.write_bytes(theirs)
        other.write_bytes(ours)


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 2**31, 2**53, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, 1e-320, "", "x", "\x1b[2J"),
    *("../../x", "/etc/passwd", "a" * 1000, [], {}, [1], ["x"], [[]], {"x": 1}, "\u202e", "NaN"),
)


def change_value(path: Path, rng: random.Random) -> None:
    """Change, remove or add a value in a JSON file; flip a bit in any other file."""
    try:
        content = json.loads(path.read_text())
    except ValueError:
        flip_bit(path, rng)
        return
    entries = list(_entries(content))
    if not entries:
        path.write_text(json.dumps(rng.choice(VALUES)))
        return
    container, key = rng.choice(entries)
    match rng.randrange(4):
        case 0:
            del container[key]
        case 1 if isinstance(container, dict):
            container[f"{key}-2"] = rng.choice(VALUES)
        case _:
            container[key] = rng.choice(VALUES)
    path.write_text(json.dumps(content))


def _entries(content: Any) -> Any:
    keys = content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in keys:
        yield content, key
        yield from _entries(content[key])


def nest(path: Path, rng: random.Random) -> None:
    depth = rng.choice([100, 10_000, 200_000])
    path.write_text(rng.choice(['{"a":', "["]) * depth)


def link_elsewhere(path: Path, _: random.Random) -> None:
    """A symlink to the same content outside the folder."""
    other = Path(f"{path.parent.parent}.outside-{path.name}")
    other.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(other.resolve())


def link_to_itself(path: Path, _: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


def link_to_device(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to(rng.choice(["/dev/zero", "/dev/null", "/dev/full", "/dev/stdin", "/proc/self/mem", "/proc/kmsg"]))


def pipe(path: Path, _: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


def huge(path: Path, _: random.Random) -> None:
    """A sparse file of 1 TB."""
    os.truncate(path, 2**40)


def unreadable(path: Path, _: random.Random) -> None:
    path.chmod(0)


CORRUPTIONS: Mapping[str, Corruption] = {
    "bit flipped": flip_bit,
    "bytes changed": change_bytes,
    "truncated": truncate,
    "emptied": empty,
    "deleted": delete,
    "part duplicated": duplicate_part,
    "appended to": append,
    "block of zeros": zero_block,
    "swapped": swap_with_neighbor,
    "value changed": change_value,
}
HOSTILE: Mapping[str, Corruption] = {
    "nested JSON": nest,
    "symlink outside": link_elsewhere,
    "symlink to itself": link_to_itself,
    "symlink to device": link_to_device,
    "named pipe": pipe,
    "folder": folder,
    "1 TB file": huge,
    "unreadable": unreadable,
}
