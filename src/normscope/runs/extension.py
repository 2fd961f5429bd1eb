"""extension.json: a run that is trained for more steps than planned."""

from itertools import pairwise

from normscope.errors import ConfigError
from normscope.runs.checkpoints import Count
from normscope.storage.files import with_checksum
from normscope.storage.json_files import FileFormat, JsonSource, StrictStruct, to_json_bytes
from normscope.storage.safe_folder import SafeFolder

EXTENSION_NAME, EXTENSION_FORMAT = "extension.json", FileFormat(1)


class Extension(StrictStruct):
    """Schema of extension.json: the number of steps, and those before each extension.

    config.json never changes, because every checkpoint is bound to its checksum. A run that is trained for more steps
    than planned has an extension.json besides, with the new number of steps.
    """

    steps: Count
    before: list[Count]

    def __str__(self) -> str:
        return (
            f"extended from {' to '.join(map(str, self.before))} to {self.steps} steps. Earlier steps followed the "
            f"learning-rate schedule of the shorter run, so the result differs from a run of {self.steps} steps"
        )


def read_extension(folder: SafeFolder, planned: int) -> Extension | None:
    """Read the extension of a run; None if it was not extended.

    Args:
        folder: The run folder.
        planned: The number of steps in its config.json.
    """
    if not folder.has(EXTENSION_NAME):
        return None
    source = JsonSource(folder.path / EXTENSION_NAME, "restore it from a copy", ConfigError)
    extension = source.parse(folder.read(EXTENSION_NAME), Extension, checksum=True, file_format=EXTENSION_FORMAT)
    ends = [*extension.before, extension.steps]
    if ends[0] != planned or any(later <= earlier for earlier, later in pairwise(ends)):
        raise source.problem(f"does not extend this run of {planned} steps")
    return extension


def write_extension(folder: SafeFolder, extension: Extension) -> None:
    content = {"format": EXTENSION_FORMAT.version, "steps": extension.steps, "before": extension.before}
    folder.write(EXTENSION_NAME, to_json_bytes(with_checksum(content)))
