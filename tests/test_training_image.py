"""The script that renders the README's image of a training run."""

import runpy
from pathlib import Path

from normscope.runs.events import StartedEvent, StepEvent

SCRIPT = Path(__file__).parents[1] / "examples" / "training_image.py"


def test_the_live_display_is_rendered_once_near_the_end_without_the_folder_of_this_machine(tmp_path: Path) -> None:
    recorder = runpy.run_path(str(SCRIPT))["PanelRecorder"]()
    recorder.on_event(StartedEvent(0, str(tmp_path / "someone"), 100, 1000, 256, 64, 1.0))
    images = []
    for step in (96, 97, 98):
        recorder.on_event(StepEvent(step, 2.0, 1.0, 1.0, 0.1, 0.1, 640, matrix_lr=0.02, lr=0.01))
        images.append(recorder.svg)
    assert images[0] == ""
    assert "runs/stories" in images[1].replace("&#160;", " ")
    assert "someone" not in images[1]
    assert images[2] == images[1]
