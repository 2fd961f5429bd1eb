"""Helpers that damage a run folder, or change it and recompute all checksums."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from normscope.runs.checksummed_folder import MANIFEST_NAME, write_manifest
from normscope.storage.files import with_checksum
from normscope.storage.safe_folder import SafeFolder

Change = Callable[[dict[str, Any]], object]


def flip_bit(path: Path, bit: int) -> None:
    """Flip one bit of a file; the index wraps around at its end."""
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(data)


def rewrite_manifest(folder: Path, config: str | None = None) -> None:
    """Rewrite the manifest of a folder with the current checksums of its files."""
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    write_manifest(SafeFolder(folder), manifest["files"], config or manifest["config_sha256"])


def rewrite(path: Path, change: Change) -> None:
    """Change a JSON file, and its checksum if it has one."""
    content = json.loads(path.read_text())
    has_checksum = content.pop("checksum", None) is not None
    change(content)
    path.write_text(json.dumps(with_checksum(content) if has_checksum else content))


def rewrite_config(run: Path, change: Change) -> None:
    """Change the config.json of a run, and every checksum that covers it."""
    rewrite(run / "config.json", change)
    content = (run / "config.json").read_bytes()
    rewrite_manifest(run)
    for checkpoint in (run / "checkpoints").glob("0*"):
        rewrite(checkpoint / "state.json", lambda state: state.update(config=json.loads(content)))
        rewrite_manifest(checkpoint, hashlib.sha256(content).hexdigest())


def files_of(folder: Path) -> list[Path]:
    """All files of a folder, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def fingerprint(folder: Path) -> dict[str, str]:
    """All names below a folder with the checksums of their files, to detect any change."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }
