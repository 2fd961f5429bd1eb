"""job.json: the torchrun job that created a run, so that the job continues this run after a restart."""

from collections.abc import Iterable
from pathlib import Path

from normscope.errors import ConfigError
from normscope.runs.checksummed_folder import MANIFEST_NAME
from normscope.runtime.torchrun import is_restart, job_name
from normscope.storage.files import with_checksum
from normscope.storage.json_files import FileFormat, JsonSource, StrictStruct, to_json_bytes
from normscope.storage.safe_folder import SafeFolder

JOB_NAME, JOB_FORMAT = "job.json", FileFormat(1)


class Job(StrictStruct):
    """Schema of job.json."""

    job: str


def mark_job(folder: SafeFolder) -> None:
    """Note in a new run folder which job creates it; does nothing without torchrun."""
    name = job_name()
    if name is not None:
        folder.write(JOB_NAME, to_json_bytes(with_checksum({"format": JOB_FORMAT.version, "job": name})))


def run_of_this_job(folders: Iterable[Path]) -> Path | None:
    """The run that this job created before it was restarted; None if it has none, or if this is its first start."""
    return next((folder for folder in folders if _created_by(folder) == job_name()), None) if is_restart() else None


def _created_by(folder: Path) -> str | None:
    safe_folder = SafeFolder(folder)
    if not (safe_folder.has(JOB_NAME) and safe_folder.has(MANIFEST_NAME)):
        return None  # without a manifest, its creation was interrupted, and starts over
    source = JsonSource(folder / JOB_NAME, "delete it, and continue with normscope resume", ConfigError)
    return source.parse(safe_folder.read(JOB_NAME), Job, checksum=True, file_format=JOB_FORMAT).job
