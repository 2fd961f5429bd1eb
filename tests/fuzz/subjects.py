"""What is damaged: a run, a corpus, a tokenizer, an x-ray, a Hugging Face folder; and the commands that read it."""

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
from tests.fuzz.damage import DAMAGES, HOSTILE
from tests.fuzz.trial import Ended, Trial, run_apart

STEPS = 6
TRAIN = [word if word != "characters" else "bpe" for word in SMALL]
TOKENS = ["--vocab-size", "300"]


@dataclass(frozen=True)
class Reader:
    """A command that reads something.

    Args:
        arguments: of the command; {} is the thing.
        result: what it made, to be compared with what it makes of the thing undamaged.
    """

    arguments: str
    result: Callable[[Ended, Path], str]

    def act(self, name: str) -> Callable[[], int]:
        words = [word.format(name) for word in self.arguments.split()]
        return lambda: main(words)


def printed(ended: Ended, _: Path) -> str:
    return ended.out


def trained(_: Ended, folder: Path) -> str:
    """The last checkpoint's tensors, and the losses on the way."""
    run = next(path for path in (folder / "thing", folder / "made") if (path / "metrics.jsonl").exists())
    last = max((run / "checkpoints").glob("0*"))
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(last.glob("*.safetensors"))]
    events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return str(sums + [(event["step"], event["loss"]) for event in events if event["kind"] == "step"])


def written(*names: str) -> Callable[[Ended, Path], str]:
    """Files that were written, but for times."""

    def read(_: Ended, folder: Path) -> str:
        texts = [(folder / name).read_bytes().decode(errors="replace") for name in names]
        return re.sub(r"[\d.]+ (s|ms|min)\b", "", "\0".join(texts))

    return read


@dataclass(frozen=True)
class Subject:
    """Something that is damaged.

    Args:
        kind: what it is.
        place: the whole one.
        readers: the commands that read it.
        has_checksums: whether normscope wrote it, with checksums: then a change must not go unnoticed.
    """

    kind: str
    folder: Path
    readers: Sequence[Reader]
    has_checksums: bool = True

    @property
    def name(self) -> str:
        """What its copy is called in a trial."""
        return f"thing{self.folder.suffix}"

    def copy(self) -> None:
        if self.folder.is_dir():
            shutil.copytree(self.folder, self.name)
        else:
            shutil.copy(self.folder, self.name)

    def files(self) -> list[Path]:
        found = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        return [path.relative_to(self.folder) for path in found] if self.folder.is_dir() else [Path()]


class Bench:
    """All subjects, made once, and the results of their readers.

    Args:
        place: the folder that they are made in.
        quick: only a run and an x-ray, which take little time to make.
    """

    def __init__(self, folder: Path, quick: bool = False) -> None:
        self.folder, self.quick = folder, quick
        self._right: dict[tuple[str, str], tuple[int | None, str]] = {}
        self.subjects = list(self._make())

    def _make(self) -> Iterator[Subject]:
        text = write_text(self.folder)
        run = self.folder / "run"
        self._do("train", str(text), "--out", str(run), *TRAIN, str(STEPS), *TOKENS, "--xray-every", "3")
        self._do("xray", "nanochat", "--depth", "1", "--json", str(self.folder / "look.json"))
        shutil.copy(run / "tokenizer.json", self.folder / "tokenizer.json")
        yield Subject(
            "run",
            run,
            [
                Reader("sample {} --tokens 12 -n 2", printed),
                Reader("sample {} --tokens 12 --checkpoint last", printed),
                Reader("report {}", written("thing/report.html")),
                Reader("xray {}", printed),
                Reader("draw model {}", printed),
                Reader("resume {}", printed),
            ],
        )
        yield Subject("x-ray", self.folder / "look.json", [Reader("xray {}", printed)])
        if not self.quick:
            yield from self._make_more(text)

    def _make_more(self, text: Path) -> Iterator[Subject]:
        half, corpus = self.folder / "half", self.folder / "corpus"
        self._do("train", str(text), "--out", str(half), *TRAIN, str(STEPS), *TOKENS, "--eval-every", "2")
        self._do("resume", str(half), "--from-step", "0", "--until", "4")
        yield Subject("half-done run", half, [Reader("resume {}", trained)])
        self._do("prepare", str(text), "--out", str(corpus), "--tokenizer", "bpe", *TOKENS)
        small = " ".join(TRAIN[:10])
        yield Subject("prepared corpus", corpus, [Reader(f"train {{}} --out made {small} --steps 2", trained)])
        tokens = written("made/train.bin", "made/validation.bin")
        prepare = Reader(f"prepare {text} --out made --tokenizer {{}}", tokens)
        yield Subject("tokenizer", self.folder / "tokenizer.json", [prepare], has_checksums=False)
        for folder in self._huggingface():
            readers = [Reader("xray {}", printed), Reader("draw model {}", printed)]
            yield Subject("Hugging Face folder", folder, readers, has_checksums=False)

    def _huggingface(self) -> Iterator[Path]:
        from tests.interop.checkpoints import made  # brings transformers, which takes seconds

        for form in ("gpt2", "llama"):
            folder = self.folder / f"hf-{form}"
            made(form).save_pretrained(folder)
            yield folder

    def _do(self, *arguments: str) -> None:
        nowhere = self.folder / "making"
        nowhere.mkdir(exist_ok=True)
        ended = run_apart(lambda: main(list(arguments)), nowhere, 300)
        shutil.rmtree(nowhere)
        if ended.code not in (0, 1):
            raise RuntimeError(f"normscope {' '.join(arguments)} failed: {ended.errors}")

    def trial(self, rng: random.Random) -> Trial:
        """Some damage to some file of some subject, and a command that reads it."""
        subject = rng.choices(self.subjects, weights=[len(subject.readers) for subject in self.subjects])[0]
        reader, file = rng.choice(subject.readers), rng.choice(subject.files())
        hostile = rng.random() < 0.3
        damages = HOSTILE if hostile else DAMAGES
        how = rng.choice(list(damages))
        seed = rng.randrange(2**32)
        words = f"{subject.kind}: {Path(subject.folder.name) / file} {how} (seed {seed}), {reader.arguments}"

        def act() -> int:
            subject.copy()
            damages[how](Path(subject.name) / file, random.Random(seed))
            return reader.act(subject.name)()

        return Trial(
            f"{'hostile' if hostile else 'damaged'}: {subject.kind}",
            words,
            act,
            lambda ended, folder: self._judge(subject, reader, ended, folder),
        )

    def _judge(self, subject: Subject, reader: Reader, ended: Ended, folder: Path) -> str:
        code, right = self._result(subject, reader)
        refused = re.search(r"^error: ", ended.errors, re.MULTILINE) is not None
        if ended.code not in (0, 1) or refused:
            return "detected" if refused else "traceback"
        try:
            same = (ended.code, reader.result(ended, folder)) == (code, right)
        except (OSError, ValueError, StopIteration):
            same = False
        if same:
            return "harmless"
        if "note: " in ended.errors + ended.out or "note at step" in ended.out:
            return "detected"
        return "silent" if subject.has_checksums else "accepted"

    def _result(self, subject: Subject, reader: Reader) -> tuple[int | None, str]:
        """What the command gives for the thing undamaged."""
        key = (str(subject.folder), reader.arguments)
        if key not in self._right:
            folder = self.folder / "right"
            folder.mkdir()

            def act() -> int:
                subject.copy()
                return reader.act(subject.name)()

            ended = run_apart(act, folder, 120)
            self._right[key] = ended.code, reader.result(ended, folder)
            shutil.rmtree(folder)
        return self._right[key]
