"""`normscope sample`: what is written, and what is refused before a word is."""

import json
import shutil
from pathlib import Path

import pytest

from normscope.generate.text import generate_text
from normscope.runs.run import Run
from tests.cli.running import entered, refused, typed


def text_of(run: Path, prompt: str, **settings: int) -> str:
    opened = Run.open(run)
    model, _ = opened.load_model()
    tokenizer = opened.corpus().tokenizer
    (text,) = generate_text(model, tokenizer, prompt, temperature=0.8, **settings)  # type: ignore[arg-type]
    return prompt + text.text


def test_one_text_is_written_as_it_comes(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, errors = entered(["sample", str(trained_run), "--prompt", "7 bottles", "--tokens", "12"], capsys)
    assert (code, out) == (0, text_of(trained_run, "7 bottles", max_new_tokens=12) + "\n")
    assert errors.startswith("note: the text exceeds the context of")


def test_without_a_prompt_it_begins_a_text(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = typed(f"sample {trained_run} --tokens 5", capsys)[1]
    assert out == text_of(trained_run, "", max_new_tokens=5) + "\n"
    assert typed(f"sample {trained_run} --tokens 5 --prompt", capsys)[1] == out


def test_several_are_numbered(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = typed(f"sample {trained_run} --prompt 1 2 -n 2 --tokens 3", capsys)
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("---")] == [f"--- {i} of 4 ---" for i in range(1, 5)]
    assert f"--- 1 of 4 ---\n{text_of(trained_run, '1', max_new_tokens=3)}\n\n" in out


def test_the_seed_decides(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outs = [typed(f"sample {trained_run} --tokens 40 --seed {seed}", capsys)[1] for seed in (1, 1, 2)]
    assert outs[0] == outs[1] != outs[2]


def test_a_stop_string_may_be_a_line_break(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sample", str(trained_run), "--tokens", "200", "--temperature", "1.5", "--stop", "\\n"]
    assert entered(words, capsys)[1].count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--checkpoint 999", "has no checkpoint '999'\nfix: choose one of best, last, 2, 4"),
        ("--checkpoint first", "has no checkpoint 'first'"),
        ("--prompt é", "'é' (U+00E9"),
        ("--prompt \udcff", "lone surrogate U+DCFF"),
        ("--tokens 0", "--tokens 0 must be a positive integer"),
        ("--temperature -1", "--temperature -1.0"),
        ("--top-k 0", "--top-k 0"),
        ("--top-p 2", "--top-p 2.0"),
        ("--min-p 0", "--min-p 0.0"),
        ("-n 0", "error: -n 0 must be"),
        ("--samples 0", "error: --samples 0 must be"),
        ("-n 999999999999", "error: -n 999999999999 for 1 prompts exceeds the limit of 1,000,000 sequences"),
        ("--seed -1", "--seed -1"),
    ],
)
def test_what_cannot_be_is_refused_before_a_word_is_written(
    trained_run: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    code, out, errors = typed(f"sample {trained_run} {words}", capsys)
    assert (code, out) == (2, "")
    assert errors.startswith("error: ")
    assert message in errors


def test_the_tokens_that_it_learnt_from_are_not_needed(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = typed(f"sample {trained_run} --tokens 5", capsys)[1]
    run = shutil.copytree(trained_run, tmp_path / "run")
    shutil.rmtree(run / "data")
    assert typed(f"sample {run} --tokens 5", capsys) == (0, out, "")
    (run / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in refused(["sample", str(run)], capsys)


def test_no_run_and_a_damaged_one(in_folder: Path, trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such model: 'nothing'" in refused(["sample", "nothing"], capsys)
    step = trained_run / "checkpoints" / "00000002"
    file = step / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    try:
        errors = refused(["sample", str(trained_run), "--checkpoint", "2"], capsys)
    finally:
        file.write_bytes(whole)
    assert "model.safetensors is damaged" in errors
    assert "use another checkpoint (4): resume with --from-step, sample with --checkpoint" in errors


@pytest.mark.parametrize("command", ["sample", "xray"])
def test_a_checkpoint_without_its_manifest_is_told_of(
    command: str, trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained_run, tmp_path / "run")
    (tmp_path / "run/checkpoints/00000004/manifest.json").unlink()
    arguments = [command, str(tmp_path / "run"), "--checkpoint", "last"]
    code, _, errors = entered(arguments, capsys)
    assert code in (0, 1)
    assert "note: ignoring the incomplete checkpoint of step 4 (no manifest)" in errors


def test_json_and_quiet(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"sample {trained_run} -n 2 --tokens 5"
    _, out, errors = typed(f"{line} --json", capsys)
    samples = json.loads(out)
    assert errors == ""
    assert [(one["prompt"], one["sample"], len(one["tokens"])) for one in samples] == [("", 0, 5), ("", 1, 5)]
    assert {one["finish_reason"] for one in samples} == {"length"}
    _, plain, _ = typed(line, capsys)
    _, quiet, errors = typed(f"{line} --quiet", capsys)
    assert errors == ""
    assert plain.splitlines()[0] == "--- 1 of 2 ---"
    assert quiet == "".join(f"{one['text']}\n\n" for one in samples)
