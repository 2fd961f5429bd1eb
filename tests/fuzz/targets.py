"""Files to damage (a run, a corpus, a tokenizer, an x-ray, a Hugging Face folder) and the commands that read them."""

import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from normscope.cli import main
from tests.cli.running import SMALL, write_text
from tests.fuzz.corruption import CORRUPTIONS, HOSTILE
from tests.fuzz.trial import ProcessResult, Trial, run_forked

STEPS = 6
TRAIN = [word if word != "characters" else "bpe" for word in SMALL]
TOKENS = ["--vocab-size", "300"]


@dataclass(frozen=True)
class Reader:
    """A command that reads a target.

    Args:
        arguments: of the command; {} stands for the target.
        result: extracts the result, to compare with that of the undamaged target.
    """

    arguments: str
    result: Callable[[ProcessResult, Path], str]

    def act(self, name: str) -> Callable[[], int]:
        arguments = [word.format(name) for word in self.arguments.split()]
        return lambda: main(arguments)


def printed(result: ProcessResult, _: Path) -> str:
    return result.out


def trained(_: ProcessResult, folder: Path) -> str:
    """Checksums of the last checkpoint, and all losses."""
    run = next(path for path in (folder / "target", folder / "made") if (path / "metrics.jsonl").exists())
    last = max((run / "checkpoints").glob("0*"))
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(last.glob("*.safetensors"))]
    events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return str(sums + [(event["step"], event["loss"]) for event in events if event["kind"] == "step"])


def written(*names: str) -> Callable[[ProcessResult, Path], str]:
    """Contents of the written files, without durations."""

    def read(_: ProcessResult, folder: Path) -> str:
        texts = [(folder / name).read_bytes().decode(errors="replace") for name in names]
        return re.sub(r"[\d.]+ (s|ms|min)\b", "", "\0".join(texts))

    return read


@dataclass(frozen=True)
class Target:
    """A file or folder to damage.

    Args:
        kind: what it is.
        folder: path of the undamaged original.
        readers: commands that read it.
        has_checksums: whether normscope wrote it with checksums, so that every change must be detected.
    """

    kind: str
    folder: Path
    readers: Sequence[Reader]
    has_checksums: bool = True

    @property
    def name(self) -> str:
        """Name of its copy in a trial."""
        return f"target{self.folder.suffix}"

    def copy(self) -> None:
        if self.folder.is_dir():
            shutil.copytree(self.folder, self.name)
        else:
            shutil.copy(self.folder, self.name)

    def files(self) -> list[Path]:
        found = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        return [path.relative_to(self.folder) for path in found] if self.folder.is_dir() else [Path()]


class Targets:
    """All targets, built once, and the expected results of their readers.

    Args:
        folder: where they are built.
        quick: build only a run and an x-ray.
    """

    def __init__(self, folder: Path, quick: bool = False) -> None:
        self.folder, self.quick = folder, quick
        self._expected: dict[tuple[str, str], tuple[int | None, str]] = {}
        self.targets = list(self._build())

    def _build(self) -> Iterator[Target]:
        text = write_text(self.folder)
        run = self.folder / "run"
        self._run("train", str(text), "--out", str(run), *TRAIN, str(STEPS), *TOKENS, "--xray-every", "3")
        self._run("xray", "nanochat", "--depth", "1", "--json", str(self.folder / "xray.json"))
        shutil.copy(run / "tokenizer.json", self.folder / "tokenizer.json")
        yield Target(
            "run",
            run,
            [
                Reader("sample {} --tokens 12 -n 2", printed),
                Reader("sample {} --tokens 12 --checkpoint last", printed),
                Reader("report {}", written("target/report.html")),
                Reader("xray {}", printed),
                Reader("draw model {}", printed),
                Reader("resume {}", printed),
            ],
        )
        yield Target("x-ray", self.folder / "xray.json", [Reader("xray {}", printed)])
        if not self.quick:
            yield from self._build_slow(text)

    def _build_slow(self, text: Path) -> Iterator[Target]:
        unfinished, corpus = self.folder / "unfinished", self.folder / "corpus"
        self._run("train", str(text), "--out", str(unfinished), *TRAIN, str(STEPS), *TOKENS, "--eval-every", "2")
        self._run("resume", str(unfinished), "--from-step", "0", "--until", "4")
        yield Target("unfinished run", unfinished, [Reader("resume {}", trained)])
        self._run("prepare", str(text), "--out", str(corpus), "--tokenizer", "bpe", *TOKENS)
        small = " ".join(TRAIN[:10])
        yield Target("prepared corpus", corpus, [Reader(f"train {{}} --out made {small} --steps 2", trained)])
        tokens = written("made/train.bin", "made/validation.bin")
        prepare = Reader(f"prepare {text} --out made --tokenizer {{}}", tokens)
        yield Target("tokenizer", self.folder / "tokenizer.json", [prepare], has_checksums=False)
        for folder in self._huggingface():
            readers = [Reader("xray {}", printed), Reader("draw model {}", printed)]
            yield Target("Hugging Face folder", folder, readers, has_checksums=False)

    def _huggingface(self) -> Iterator[Path]:
        from tests.interop.checkpoints import made  # imports transformers, which takes seconds

        for form in ("gpt2", "llama"):
            folder = self.folder / f"hf-{form}"
            made(form).save_pretrained(folder)
            yield folder

    def _run(self, *arguments: str) -> None:
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        result = run_forked(lambda: main(list(arguments)), scratch, 300)
        shutil.rmtree(scratch)
        if result.code not in (0, 1):
            raise RuntimeError(f"normscope {' '.join(arguments)} failed: {result.errors}")

    def trial(self, rng: random.Random) -> Trial:
        """Damage a random file of a random target, and run a command that reads it."""
        target = rng.choices(self.targets, weights=[len(target.readers) for target in self.targets])[0]
        reader, file = rng.choice(target.readers), rng.choice(target.files())
        is_hostile = rng.random() < 0.3
        corruptions = HOSTILE if is_hostile else CORRUPTIONS
        how = rng.choice(list(corruptions))
        seed = rng.randrange(2**32)
        description = f"{target.kind}: {Path(target.folder.name) / file} {how} (seed {seed}), {reader.arguments}"

        def act() -> int:
            target.copy()
            corruptions[how](Path(target.name) / file, random.Random(seed))
            return reader.act(target.name)()

        return Trial(
            f"{'hostile' if is_hostile else 'damaged'}: {target.kind}",
            description,
            act,
            lambda result, folder: self._judge(target, reader, result, folder),
        )

    def _judge(self, target: Target, reader: Reader, result: ProcessResult, folder: Path) -> str:
        code, expected = self._result(target, reader)
        refused = re.search(r"^error: ", result.errors, re.MULTILINE) is not None
        if result.code not in (0, 1) or refused:
            return "detected" if refused else "traceback"
        try:
            same = (result.code, reader.result(result, folder)) == (code, expected)
        except (OSError, ValueError, StopIteration):
            same = False
        if same:
            return "harmless"
        if "note: " in result.errors + result.out or "note at step" in result.out:
            return "detected"
        return "silent" if target.has_checksums else "accepted"

    def _result(self, target: Target, reader: Reader) -> tuple[int | None, str]:
        """Result of the command on the undamaged target."""
        key = (str(target.folder), reader.arguments)
        if key not in self._expected:
            folder = self.folder / "undamaged"
            folder.mkdir()

            def act() -> int:
                target.copy()
                return reader.act(target.name)()

            result = run_forked(act, folder, 120)
            self._expected[key] = result.code, reader.result(result, folder)
            shutil.rmtree(folder)
        return self._expected[key]
