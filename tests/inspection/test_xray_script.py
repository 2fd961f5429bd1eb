"""Training scripts run under the x-ray without a change, see nothing of it, and end after some steps."""

import gc
import sys
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.modules import COMPILED
from normscope.diagnostics.record import XrayRecord
from normscope.errors import ConfigError
from normscope.inspection.xray_script import ScriptResult, xray_script

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch.compile

HEAD = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

def step(model, optimizer):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(16, 4)), torch.randint(3, (16,))).backward()
    optimizer.step()
"""

TRAIN = f"""{HEAD}
net = model()
adam = torch.optim.Adam(net.parameters())
for i in range(10):
    step(net, adam)
"""


@pytest.fixture(autouse=True)
def _without_models_of_other_tests() -> None:
    gc.collect()


def xrayed(folder: Path, code: str, *arguments: str, steps: int = 3) -> ScriptResult:
    (folder / "train.py").write_text(code)
    return xray_script(folder / "train.py", arguments, steps=steps)


def record_of(result: ScriptResult) -> XrayRecord:
    assert result.error is None
    assert result.xray is not None
    return result.xray.record


def test_it_begins_before_the_first_pass_and_ends_before_the_one_after_the_last(tmp_path: Path) -> None:
    before = (nn.Module.__call__, Optimizer.__init__, sys.argv, sys.modules["__main__"], list(sys.path))
    record = record_of(xrayed(tmp_path, TRAIN))
    assert (record.model, record.batches, record.backward_passes, len(record.steps)) == ("Sequential", 3, 3, 3)
    assert record.steps[0].number == 1
    assert record.label == "train.py"
    assert record.hints is not None
    assert record.hints.optimizers == ("Adam",)
    assert (nn.Module.__call__, Optimizer.__init__, sys.argv, sys.modules["__main__"], list(sys.path)) == before


def test_a_script_may_end_earlier_or_exit(tmp_path: Path) -> None:
    assert len(record_of(xrayed(tmp_path, TRAIN, steps=99)).steps) == 10
    assert len(record_of(xrayed(tmp_path, f"{TRAIN}raise SystemExit", steps=99)).steps) == 10
    result = xrayed(tmp_path, f"{TRAIN}raise SystemExit('no disk')", steps=99)
    assert isinstance(result.error, SystemExit)
    assert result.xray is not None


def test_except_exception_does_not_catch_the_end(tmp_path: Path) -> None:
    code = f"""{HEAD}
net = model()
adam = torch.optim.Adam(net.parameters())
while True:
    try:
        step(net, adam)
    except Exception:
        pass
"""
    assert len(record_of(xrayed(tmp_path, code)).steps) == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # without pytest it is silent
def test_training_in_a_thread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = f"""{HEAD}
import threading

def train():
    for i in range(100):
        step(net, adam)

net = model()
adam = torch.optim.Adam(net.parameters())
thread = threading.Thread(target=train)
thread.start()
thread.join()
print("joined")
"""
    record = record_of(xrayed(tmp_path, code))
    assert (len(record.steps), record["1"].calls) == (3, 3)
    assert capsys.readouterr().out == "joined\n"


def test_it_runs_as_python_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("WIDTH = 8")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lr.txt").write_text("0.5")
    monkeypatch.chdir(tmp_path / "data")
    code = f"""{HEAD}
import argparse, sys
from pathlib import Path
from beside import WIDTH

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--momentum", type=float)
    assert Path(sys.argv[0]).name == "train.py"
    momentum = parser.parse_args().momentum
    net = torch.compile(nn.Sequential(nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3)))
    sgd = torch.optim.SGD(net.parameters(), lr=float(Path("lr.txt").read_text()), momentum=momentum)
    data = torch.utils.data.DataLoader(Data(), num_workers=1)
    for _ in data:
        step(net, sgd)

class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.shift = nn.Linear(1, 1)  # a worker calls a module
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return self.shift(torch.ones(1)).detach()

if __name__ == "__main__":
    main()
"""
    record = record_of(xrayed(tmp_path, code, "--momentum", "0.9"))
    assert [(step.optimizer, step.lr) for step in record.steps] == [("SGD", 0.5)] * 3
    assert record["0"].output_shapes == ((16, 8),)
    assert "beside" not in sys.modules


def test_several_models_are_one_record_with_their_names(tmp_path: Path) -> None:
    code = f"""{HEAD}
class Loop:
    def __init__(self):
        self.generator, self.critic = model(), torch.compile(model())
        self.optimizers = [torch.optim.Adam(net.parameters()) for net in (self.generator, self.critic)]
    def run(self):
        for i in range(10):
            step(self.generator, self.optimizers[0])
            for _ in range(2):
                step(self.critic, self.optimizers[1])
Loop().run()
"""
    record = record_of(xrayed(tmp_path, code))
    names = {module.name.partition(".")[0] for module in record.modules}
    assert names == {"", "generator", "critic"}
    assert (record.model, record.notices) == ("generator and critic", (COMPILED,))
    assert record["generator.0"].calls == 3
    assert record["critic.0"].calls == 4  # the third round has only begun


def test_the_model_is_the_outermost_module_although_only_its_parts_are_called(tmp_path: Path) -> None:
    code = f"""{HEAD}
class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.never = model(), nn.Linear(2, 2)
task = Task()
adam = torch.optim.Adam(task.parameters())
for i in range(10):
    step(task.net, adam)
"""
    record = record_of(xrayed(tmp_path, code))
    assert record.model == "Task"
    assert record["never"].order is None


def test_what_steps_without_an_optimizer_is_seen_from_its_second_pass(tmp_path: Path) -> None:
    code = f"""{HEAD}
net = model()
for i in range(10):
    net(torch.ones(2, 4)).sum().backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad
"""
    assert record_of(xrayed(tmp_path, code)).backward_passes == 9


def test_a_loop_that_never_steps_ends(tmp_path: Path) -> None:
    code = f"""{HEAD}
net = model()
adam = torch.optim.Adam(net.parameters())
while True:
    net(torch.ones(2, 4)).sum().backward()
"""
    assert record_of(xrayed(tmp_path, code, steps=2)).backward_passes == 32


def test_an_evaluation_before_training_is_not_the_beginning(tmp_path: Path) -> None:
    code = TRAIN.replace("for i", "net.eval()\nwith torch.no_grad():\n    net(torch.ones(2, 4))\nnet.train()\nfor i")
    assert record_of(xrayed(tmp_path, code)).batches == 3


def test_an_error_of_the_script_comes_with_the_findings_so_far(tmp_path: Path) -> None:
    result = xrayed(tmp_path, TRAIN.replace("step(net, adam)", "step(net, adam) if i < 2 else 1 / 0"))
    assert isinstance(result.error, ZeroDivisionError)
    assert result.error.__traceback__ is not None
    assert result.error.__traceback__.tb_frame.f_code.co_filename.endswith("train.py")
    assert result.xray is not None
    assert len(result.xray.record.steps) == 2
    assert result.xray.record.interrupted
    assert xrayed(tmp_path, "1 / 0").xray is None
    assert isinstance(xrayed(tmp_path, "def").error, SyntaxError)


def test_nonsense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)ended without training a model.*fix: "):
        xrayed(tmp_path, "print(1)")
    with pytest.raises(ConfigError, match=r"(?s)is a folder.*fix: "):
        xray_script(tmp_path)
    with pytest.raises(ConfigError, match=r"(?s)does not exist.*fix: "):
        xray_script(tmp_path / "none.py")
    (tmp_path / "train.ipynb").write_text("{}")
    with pytest.raises(ConfigError, match=r"(?s)is a notebook.*fix: .*normscope.xray"):
        xray_script(tmp_path / "train.ipynb")
    with pytest.raises(ConfigError, match="steps=0"):
        xray_script(tmp_path / "train.py", steps=0)


def test_the_random_numbers_of_the_caller_are_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    xrayed(tmp_path, TRAIN)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_script_that_ends_with_the_last_step_that_was_asked_for(tmp_path: Path) -> None:
    assert record_of(xrayed(tmp_path, TRAIN, steps=10)).batches == 10


def test_a_traceback_shows_the_script_and_torch_but_no_hook_of_the_xray(tmp_path: Path) -> None:
    result = xrayed(tmp_path, TRAIN.replace("step(net, adam)", "step(net, adam) if i < 2 else net(torch.ones(2, 5))"))
    assert isinstance(result.error, RuntimeError)
    names = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(result.error.__traceback__)]
    assert names[0] == "__main__"
    assert "torch.nn.modules.linear" in names
    assert not any(name.startswith("normscope") for name in names)
