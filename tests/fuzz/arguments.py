"""Invalid arguments for every option of every command, and for functions of the Python API."""

import dataclasses
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from normscope.cli import main
from normscope.cli.chat import Chat
from normscope.cli.compare import Compare
from normscope.cli.completion import Completion
from normscope.cli.diff import Diff
from normscope.cli.doctor import Doctor
from normscope.cli.draw import DrawBlock, DrawModel, DrawScope
from normscope.cli.explain import Explain
from normscope.cli.export import Export
from normscope.cli.import_model import Import
from normscope.cli.lab import LabList, LabReport, LabRun
from normscope.cli.plan import Plan
from normscope.cli.prepare import Prepare
from normscope.cli.replay import Replay
from normscope.cli.report import Report
from normscope.cli.resume import Resume
from normscope.cli.runs import Runs
from normscope.cli.sample import Sample
from normscope.cli.train import Train
from normscope.cli.xray import Xray
from tests.fuzz.targets import TRAIN
from tests.fuzz.trial import ProcessResult, Trial

NUMBERS = (
    *("0", "-1", "-0", "-0.0", "1", "1.5", "1e308", "-1e308", "1e400", "1e-320", "inf", "-inf", "nan", "1e39", "1e6"),
    *(
        "99999",
        "2147483648",
        "9007199254740993",
        "9" * 20,
        "9" * 400,
        "9" * 5000,
        "0x10",
        "1_000",
        "１２",
        "1,2",
        "1e",
        "+",
    ),
)
TEXTS = (
    *("", " ", "\x1b[31m", "\x1b]0;x\x07", "\u202egnp", "\udcff", "a" * 300, "a" * 100_000, "../..", "/", ".", "~"),
    *("/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem", "-", "--", "---", "%s%n", "{}", "{0.__class__}", "None"),
    *("null", "true", "[[1,2],[3]]", "[", "(", "n [c", "[[[[", "x=1", "=", "a:b", "os:system", "\\n", "💥", "\x00"[:0]),
)
SLOW_OPTIONS = {
    *("--steps", "--tokens", "--batches", "--seconds", "--minutes", "--samples", "-n", "--ns-steps", "--input")
}
"""Options that set the amount of work."""

COMMANDS: Mapping[str, tuple[str, Sequence[type]]] = {
    "train": ("train milk.txt --out made " + " ".join(TRAIN) + " 2", (Train,)),
    "resume": ("resume run", (Resume,)),
    "sample": ("sample run --tokens 5", (Sample,)),
    "chat": ("chat run --tokens 5", (Chat,)),
    "export": ("export run --out made.html", (Export,)),
    "import": ("import run --out made", (Import,)),  # a run is no checkpoint of another tool: refused
    "prepare": ("prepare milk.txt --out made --tokenizer characters", (Prepare,)),
    "report": ("report run", (Report,)),
    "runs": ("runs .", (Runs,)),
    "replay": ("replay run", (Replay,)),
    "xray": ("xray nanochat --depth 1 --context 16", (Xray,)),
    "xray-run": ("xray run", (Xray,)),
    "diff": ("diff run run", (Diff,)),
    "draw-scope": ("draw scope a[b] --shape 2,3", (DrawScope,)),
    "draw-block": ("draw block --shape 2,8,16", (DrawBlock,)),
    "draw-model": ("draw model --preset gpt2", (DrawModel,)),
    "explain": ("explain rmsnorm", (Explain,)),
    "explain-init": ("explain init", (Explain,)),
    "compare": (
        "compare --norm rms,layer --minutes 0.001 --out made",
        (Compare,),
    ),  # too little time: refused
    "lab-run": ("lab run variance-by-depth --seeds 1 --workers 1 --out made", (LabRun,)),
    "lab-list": ("lab list --out made", (LabList,)),
    "lab-report": ("lab report --out made", (LabReport,)),
    "plan": ("plan --preset llama --depth 1 --width 64 --heads 1 --context 16 --gpus 2", (Plan,)),
    "completion": ("completion bash", (Completion,)),
    "doctor": ("doctor --depth 1 --seconds 0.01", (Doctor,)),
}
SETTINGS = ("depth", "width", "heads", "context", "hidden", "kv_heads", "head_dim", "norm", "qk_norm", "activation")
MORE_SETTINGS = ("wiring", "positions", "rotary_base", "dropout", "init", "window", "logit_cap", "bias", "banana", "")


def argument_trial(rng: random.Random, folder: Path) -> Trial:
    """A valid command with one or two wrong arguments."""
    name = rng.choice(list(COMMANDS))
    base, kinds = COMMANDS[name]
    arguments = base.split()
    options = [option for kind in kinds for option in _options(kind)]
    changed = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        value = rng.choice(NUMBERS if rng.random() < 0.6 else TEXTS)
        option = rng.choice([*options, "", "--banana"])
        changed.append(option)
        arguments = _with_argument(arguments, option, value, rng)

    def act() -> int:
        shutil.copy(folder / "milk.txt", "milk.txt")
        shutil.copytree(folder / "run", "run")
        return main(arguments)

    short = " ".join(word if len(word) < 60 else f"{word[:20]}...({len(word)} characters)" for word in arguments)
    return Trial(
        f"arguments: {name.partition('-')[0]}", short, act, _judge, 40.0, may_be_slow=bool(SLOW_OPTIONS & {*changed})
    )


def _options(kind: type) -> Iterator[str]:
    for field in dataclasses.fields(kind):
        group: Any = field.default_factory
        if dataclasses.is_dataclass(group):
            yield from _options(cast(type, group))
        else:
            yield f"--{field.name.replace('_', '-')}"


def _with_argument(words: Sequence[str], option: str, value: str, rng: random.Random) -> list[str]:
    if not option:  # replace or insert a word
        at = rng.randrange(1, len(words) + 1)
        return [*words[:at], value, *words[at + rng.randrange(2) :]]
    if option == "--model":
        return [*words, option, f"{rng.choice(SETTINGS + MORE_SETTINGS)}={value}"]
    if option in words:
        at = words.index(option)
        return [*words[: at + 1], value, *words[at + 2 :]]
    return [*words, f"{option}={value}"] if rng.random() < 0.5 else [*words, option, value]


def _judge(result: ProcessResult, _: Path) -> str:
    if result.code in (2, 74) and "error: " in result.errors:
        return "detected"
    return "harmless" if result.code in (0, 1) else "traceback"


CALLS = (
    "generate_text", "generate_tokens", "load", "load_tokenizer", "GPT", "TrainConfig",
    "create_run", "prepare", "Run.open", "explain", "draw_scope", "LayerNorm", "Linear",
)  # fmt: skip
"""The names in `api_calls`, which imports torch to tell them."""


def api_calls(folder: Path) -> Mapping[str, tuple[Any, dict[str, Any]]]:
    """Functions of the Python API with valid arguments."""
    import normscope
    from normscope.data.prepare import prepare
    from normscope.data.tokenizers import CharacterTokenizer
    from normscope.runs.run import Run
    from normscope.training.config import TrainConfig
    from normscope.training.create_run import create_run
    from normscope.training.recipes import recipe

    letters = CharacterTokenizer.of(["hello world"])
    model = normscope.GPT(normscope.llama(vocab_size=letters.vocab_size, context=16, depth=1, width=16, heads=2))
    sampling: dict[str, Any] = {
        "max_new_tokens": 3,
        "samples": 1,
        "temperature": 1.0,
        "top_k": 3,
        "top_p": 0.5,
        "min_p": 0.1,
    }
    sizes = {
        "vocab_size": 9,
        "context": 8,
        "depth": 1,
        "width": 16,
        "heads": 2,
        "hidden": 8,
        "dropout": 0.1,
        "norm": "rms",
    }
    return {
        "generate_text": (
            normscope.generate_text,
            {
                "model": model,
                "tokenizer": letters,
                "prompts": "he",
                "seed": 1,
                "stop": ["x"],
                "batch_size": 2,
                **sampling,
            },
        ),
        "generate_tokens": (
            normscope.generate_tokens,
            {"model": model, "prompts": [[1, 2]], "max_new_tokens": 3, "seed": 1, "samples": 1, "stop_tokens": [1]},
        ),
        "load": (normscope.load, {"source": folder / "run", "checkpoint": "best", "device": "cpu"}),
        "load_tokenizer": (normscope.load_tokenizer, {"path": folder / "tokenizer.json"}),
        "GPT": (lambda **settings: normscope.GPT(normscope.preset("llama", **settings)), sizes),
        "TrainConfig": (
            TrainConfig,
            {"steps": 3, "batch": 2, "lr": 0.1, "seed": 1, "grad_clip": 1.0, "device": "cpu"},
        ),
        "create_run": (
            create_run,
            {
                "folder": "made",
                "sources": [folder / "milk.txt"],
                "recipe": recipe("sprint"),
                "val_fraction": 0.1,
                "prompt": "",
            },
        ),
        "prepare": (
            prepare,
            {
                "sources": folder / "milk.txt",
                "folder": "made",
                "tokenizer": "characters",
                "seed": 0,
                "val_fraction": 0.1,
            },
        ),
        "Run.open": (Run.open, {"folder": folder / "run"}),
        "explain": (normscope.explain, {"topic": "rmsnorm", "input": [3.0, 4.0]}),
        "draw_scope": (lambda scope, shape: normscope.draw_scope(scope, shape), {"scope": "a [b]", "shape": (2, 3)}),
        "LayerNorm": (normscope.LayerNorm, {"normalized_shape": 4, "eps": 1e-5, "device": None, "dtype": None}),
        "Linear": (normscope.Linear, {"in_features": 4, "out_features": 4, "device": None, "init": "gpt2"}),
    }


OBJECTS: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**53 + 1,
        10**30,
        10**400,
        0.5,
        -0.0,
        1e308,
        1e-320,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        "x",
        "\x1b[2J",
        "\0",
        "\udcff",
        "a" * 300,
        "a" * 10_000,
        b"bytes",
        [],
        [None],
        {},
        {"x": 1},
        (),
        object(),
        int,
    ),
    *([[]], [1.5], [-1], ["x"], {1}, range(3), 1j, lambda: None),
)


def call_trial(rng: random.Random, folder: Path) -> Trial:
    """A call with one wrong argument."""
    name = rng.choice(CALLS)
    number, which = rng.randrange(len(OBJECTS)), rng.random()

    def act() -> int:
        from normscope.errors import NormscopeError

        function, arguments = api_calls(folder)[name]
        wrong = list(arguments)[int(which * len(arguments))]
        try:
            function(**{**arguments, wrong: OBJECTS[number]})
        except NormscopeError as error:
            print(repr(str(error)))
            return 2
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):  # the table above is wrong, not the function
                raise
            return 99
        return 0

    value = f"{OBJECTS[number]!r:.40} as argument {which:.3f}" if number != 9 else "10**400"
    may_be_slow = name.startswith("generate")
    return Trial("Python calls", f"{name} with {value}", act, lambda result, _: _judge_call(result), 40.0, may_be_slow)


def _judge_call(result: ProcessResult) -> str:
    return {0: "harmless", 2: "detected"}.get(result.code or 0, "traceback")
