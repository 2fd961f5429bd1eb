"""The outcome counts as a text table and as a docs page."""

from collections import Counter

from tests.fuzz.trial import OUTCOMES

Counts = Counter[tuple[str, str]]
_MEANINGS = {
    "detected": "refused with an error message",
    "harmless": "the result is bitwise correct",
    "accepted": "a valid user file without a checksum has different content",
    "slow": "takes long because of the given arguments",
    "traceback": "an unhandled exception",
    "silent": "a different result without an error",
    "stuck": "a killed run cannot be resumed",
    "unsafe": "control characters in an error message",
    "hang": "exceeded the time limit",
    "crash": "terminated by a signal",
}


def table(counts: Counts) -> str:
    """One row per kind of trial, one column per outcome."""
    kinds = sorted({kind for kind, _ in counts})
    width = max((len(kind) for kind in kinds), default=4)
    lines = [f"{'':{width}}  {'trials':>9}" + "".join(f"{outcome:>11}" for outcome in OUTCOMES)]
    for kind in kinds:
        row = [counts[kind, outcome] for outcome in OUTCOMES]
        lines.append(f"{kind:{width}}  {sum(row):>9}" + "".join(f"{number:>11}" for number in row))
    total = [sum(counts[kind, outcome] for kind in kinds) for outcome in OUTCOMES]
    lines.append(f"{'all':{width}}  {sum(total):>9}" + "".join(f"{number:>11}" for number in total))
    return "\n".join(lines)


def report(counts: Counts, seed: int) -> str:
    kinds = sorted({kind for kind, _ in counts})
    rows = [["all", *(str(sum(counts[kind, outcome] for kind in kinds)) for outcome in OUTCOMES)]]
    rows += [[kind, *(str(counts[kind, outcome]) for outcome in OUTCOMES)] for kind in kinds]
    trials = sum(counts.values())
    lines = [
        "# Robustness",
        "",
        "How normscope handles damaged files, hostile folders, wrong arguments and kills. `make fuzz` writes this page",
        f"(`python -m tests.fuzz --seed {seed} --page docs/robustness.md`, {trials:,} trials); `make test` runs a",
        "few of the trials. Each trial runs in its own process, with a time limit and a memory limit.",
        "",
        f"| trial | count | {' | '.join(OUTCOMES)} |",
        f"|---|--:|{'--:|' * len(OUTCOMES)}",
        *(f"| {kind} | {sum(map(int, numbers))} | {' | '.join(numbers)} |" for kind, *numbers in rows),
        "",
        *(f"- **{outcome}**: {_MEANINGS[outcome]}." for outcome in OUTCOMES),
        "",
        "Damaged: a flipped bit, changed bytes, a truncated, duplicated or zeroed part, a file deleted or swapped",
        "with another, a changed JSON value. Hostile: symlinks outside the folder, to devices or to themselves, named",
        "pipes and folders instead of files, a 1 TB file, JSON nested 200,000 levels deep. Reader: 40 mutated files of",
        "another tool (safetensors, torch.save, pickles, GGUF), each of which is read completely or refused with an",
        "error that says how to fix it, within 5 seconds of CPU time. Killed: SIGKILL, SIGTERM or SIGINT up to four",
        "times at random times; the resumed run must end with the weights and losses of an uninterrupted run.",
        "",
    ]
    return "\n".join(lines)
