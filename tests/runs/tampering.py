"""Ways to damage a run's folder, or to rewrite it so that every checksum fits: what tests of hostile folders share."""

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
    """Flip one bit of a file, counted from its first; beyond its end from the first again."""
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(data)


def reseal(folder: Path, config: str | None = None) -> None:
    """Write a folder's manifest anew, with the checksums of what its files are now."""
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    write_manifest(SafeFolder(folder), manifest["files"], config or manifest["config_sha256"])


def rewrite(path: Path, change: Change) -> None:
    """Change the content of a JSON file, and its own checksum if it has one."""
    content = json.loads(path.read_text())
    is_signed = content.pop("checksum", None) is not None
    change(content)
    path.write_text(json.dumps(with_checksum(content) if is_signed else content))


def rewrite_config(run: Path, change: Change) -> None:
    """Change a run's config.json, and whatever checks it: the work of somebody who knows how."""
    rewrite(run / "config.json", change)
    content = (run / "config.json").read_bytes()
    reseal(run)
    for checkpoint in (run / "checkpoints").glob("0*"):
        rewrite(checkpoint / "state.json", lambda state: state.update(config=json.loads(content)))
        reseal(checkpoint, hashlib.sha256(content).hexdigest())


def files_of(folder: Path) -> list[Path]:
    """All files of a folder, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def fingerprint(folder: Path) -> dict[str, str]:
    """All names below a folder with the checksums of their files, to tell whether anything was touched."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }
