"""job.json: the torchrun job that created a run, so that the job continues this run after a restart."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from normscope.checks import short_repr
from normscope.errors import ConfigError
from normscope.runs.checksummed_folder import MANIFEST_NAME
from normscope.runtime.torchrun import is_restart, job_name
from normscope.storage.files import with_checksum
from normscope.storage.json_files import FileFormat, JsonSource, StrictStruct, to_json_bytes
from normscope.storage.safe_folder import SafeFolder

JOB_NAME, JOB_FORMAT = "job.json", FileFormat(1)


_LONGEST = 100_000
"""Characters of an argument that are stored."""


class Job(StrictStruct):
    """Schema of job.json.

    Args:
        job: Name of the job.
        arguments: What it called `train` with, as text; empty in files of older versions.
    """

    job: str
    arguments: dict[str, str] = msgspec.field(default_factory=dict)


def job_arguments(arguments: Mapping[str, object]) -> dict[str, str]:
    """Arguments as job.json stores them.

    >>> job_arguments({"depth": 4, "out": Path("runs/my"), "preset": None})
    {'depth': '4', 'out': "'runs/my'"}
    """
    values = {name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()}
    return {name: short_repr(value, _LONGEST) for name, value in values.items() if value is not None}


def mark_job(folder: SafeFolder, arguments: Mapping[str, str]) -> None:
    """Note in a new run folder which job creates it, and how; does nothing without torchrun."""
    name = job_name()
    if name is not None:
        content = {"format": JOB_FORMAT.version, "job": name, "arguments": arguments}
        folder.write(JOB_NAME, to_json_bytes(with_checksum(content)))


def run_of_this_job(folders: Iterable[Path], arguments: Mapping[str, str]) -> Path | None:
    """The run that this job created before it was restarted; None if it has none, or if this is its first start.

    Raises if the job now has other arguments, which would have no effect.
    """
    for folder in folders if is_restart() else ():
        created = _read_job(folder)
        if created is not None and created.job == job_name():
            _check_same(folder, created.arguments, arguments)
            return folder
    return None


def _check_same(folder: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name in [*now, *before] if before else ():
        if before.get(name) != now.get(name):
            old, new = (f"{name}={found[name]:.80}" if name in found else f"no {name}" for found in (before, now))
            raise ConfigError(
                f"this job created {folder} with {old}, and is started again with {new}\n"
                f"fix: the arguments of its first start; or normscope resume {folder}; or another job name (torchrun "
                f"--rdzv-id) and --out for a new run"
            )


def _read_job(folder: Path) -> Job | None:
    safe_folder = SafeFolder(folder)
    if not (safe_folder.has(JOB_NAME) and safe_folder.has(MANIFEST_NAME)):
        return None  # without a manifest, its creation was interrupted, and starts over
    source = JsonSource(folder / JOB_NAME, "delete it, and continue with normscope resume", ConfigError)
    return source.parse(safe_folder.read(JOB_NAME), Job, checksum=True, file_format=JOB_FORMAT)
