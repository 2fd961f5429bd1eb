"""The counts as a table, and as a page of the docs."""

from collections import Counter

from tests.fuzz.trial import OUTCOMES

Counts = Counter[tuple[str, str]]
_WORDS = {
    "detected": "refused, with a message that says what is wrong",
    "harmless": "the result is the right one, to the bit",
    "accepted": "a valid file of the user's own, which has no checksum, says something else",
    "as asked": "takes as long as the numbers in it ask for",
    "traceback": "an error that is not one of normscope's",
    "silent": "another result, and no error",
    "stuck": "a run that was killed cannot be resumed",
    "unsafe": "control characters in an error message",
    "hang": "no end within the time limit",
    "crash": "the process was ended by a signal",
}


def table(counts: Counts) -> str:
    """One row for each kind of fault, one column for each outcome."""
    kinds = sorted({kind for kind, _ in counts})
    width = max((len(kind) for kind in kinds), default=4)
    lines = [f"{'':{width}}  {'trials':>9}" + "".join(f"{outcome:>11}" for outcome in OUTCOMES)]
    for kind in kinds:
        row = [counts[kind, outcome] for outcome in OUTCOMES]
        lines.append(f"{kind:{width}}  {sum(row):>9}" + "".join(f"{number:>11}" for number in row))
    total = [sum(counts[kind, outcome] for kind in kinds) for outcome in OUTCOMES]
    lines.append(f"{'all':{width}}  {sum(total):>9}" + "".join(f"{number:>11}" for number in total))
    return "\n".join(lines)


def page(counts: Counts, seed: int) -> str:
    kinds = sorted({kind for kind, _ in counts})
    rows = [["all", *(str(sum(counts[kind, outcome] for kind in kinds)) for outcome in OUTCOMES)]]
    rows += [[kind, *(str(counts[kind, outcome]) for outcome in OUTCOMES)] for kind in kinds]
    trials = sum(counts.values())
    lines = [
        "# Robustness",
        "",
        "What normscope does with damaged files, hostile folders, wrong arguments and kills. `make fuzz` writes this",
        f"page: `python -m tests.fuzz --seed {seed} --page docs/robustness.md`, with {trials:,} trials here. A few",
        "of them are in `make test`. A trial runs in a process of its own, with limits on its time and its memory.",
        "",
        f"| what is done | trials | {' | '.join(OUTCOMES)} |",
        f"|---|--:|{'--:|' * len(OUTCOMES)}",
        *(f"| {kind} | {sum(map(int, numbers))} | {' | '.join(numbers)} |" for kind, *numbers in rows),
        "",
        *(f"- **{outcome}**: {_WORDS[outcome]}." for outcome in OUTCOMES),
        "",
        "Damaged: a bit flipped, bytes changed, a part lost, doubled or zero, a file deleted or swapped with its",
        "neighbor, a value in JSON changed. Hostile: links to elsewhere, to devices or to themselves, pipes and",
        "folders in the place of files, a file of a terabyte, JSON nested 200,000 deep. Killed: SIGKILL, SIGTERM or",
        "SIGINT up to four times at random moments; resumed, the run has to end with the weights and losses of one",
        "that was not.",
        "",
    ]
    return "\n".join(lines)
