"""Files deleted during a run are restored if possible; otherwise there is an error."""

import shutil
from pathlib import Path

import pytest

from normscope.errors import FileError
from normscope.runs.events import RunEvent, StepEvent
from normscope.runs.metrics_file import read_metrics
from normscope.runs.run import Run
from normscope.training.loop import train_run
from tests.training.small_run import new_run


class Deleter:
    """Deletes something of the run after its third step."""

    def __init__(self, path: Path, instead: bytes | None = None) -> None:
        self.path, self.instead = path, instead

    def on_event(self, event: RunEvent) -> None:
        if isinstance(event, StepEvent) and event.step == 3:
            shutil.rmtree(self.path) if self.path.is_dir() else self.path.unlink()
            if self.instead is not None:
                self.path.write_bytes(self.instead)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("instead", [None, b"another file\n"])
def test_deleted_metrics_are_restored(instead: bytes | None, tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=6, save_every=2)
    assert train_run(run, [Deleter(run.metrics, instead)]) == "done"
    steps = [event["step"] for event in read_metrics(run.metrics) if event["kind"] == "step"]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert Run.open(run.folder).is_done()


def test_a_deleted_folder_is_an_error(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=6, save_every=2)
    with pytest.raises(FileError, match=r"run was deleted during the run\nfix: restore it"):
        train_run(run, [Deleter(run.folder)])
