"""Which outputs change when a token is replaced: in an MLP, in attention, in a causal model."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.blocks.attention import Attention
from normscope.blocks.mlp import MLP
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.trials.layers import rms
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.models.gpt import GPT
from normscope.models.presets import PRESETS, preset
from normscope.render.chart import Chart, ChartLine

TOKENS, WIDTH, HEADS, VOCAB = 12, 32, 4, 50
LEAKING = "a norm over time"
ROUNDING = 1e-6
"""Of the output's size, in float32. Who does not see a token gives the very same numbers."""
VISIBLE = 1e-4
"""What counts as changed: a hundred times as much."""
ALL = 0.99


def variants(budget: Budget) -> Mapping[str, Settings]:
    models = {name: {"preset": name} for name in PRESETS}
    leak = {"preset": "llama", "more": {"norm": "batch", "allow_future_leak": True}}
    return {"MLP": {"block": "mlp"}, "attention": {"block": "attention"}, **models, LEAKING: leak}


def measure(settings: Settings, seed: int) -> Metrics:
    """Replace one token after the other, and see how far the output at every place moves."""
    torch.manual_seed(seed)
    run, x, other = _build(settings)
    with torch.no_grad():
        before = run(x)
        moved = []
        for j in range(TOKENS):
            changed = x.clone()
            changed[:, j] = other[:, j]
            distance = (run(changed) - before).square().mean((0, 2)).sqrt()
            moved.append((distance / rms(before)).tolist())
    places = [(j, t) for j in range(TOKENS) for t in range(TOKENS)]

    def share(those: list[tuple[int, int]]) -> float:
        return len([1 for j, t in those if moved[j][t] > VISIBLE]) / len(those)

    return {
        "others": max(moved[j][t] for j, t in places if j != t),
        "earlier": max(moved[j][t] for j, t in places if t < j),
        "share_of_others": share([(j, t) for j, t in places if j != t]),
        "share_from_there_on": share([(j, t) for j, t in places if t >= j]),
        "changed": [(j, t) for j, t in places if moved[j][t] > VISIBLE],
    }


def _build(settings: Settings) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    """What is asked, what it is given, and what tokens are replaced by."""
    module: Any
    if "block" in settings:
        module = MLP(WIDTH) if settings["block"] == "mlp" else Attention(WIDTH, HEADS, causal=False)
        x, other = torch.randn(2, 1, TOKENS, WIDTH)
    else:
        small = {"vocab_size": VOCAB, "context": TOKENS, "width": WIDTH, "heads": HEADS, "depth": 2}
        module = GPT(preset(settings["preset"], **small, **settings.get("more", {})))
        x = torch.randint(VOCAB, (1, TOKENS))
        other = (x + torch.randint(1, VOCAB, x.shape)) % VOCAB  # never the same
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() >= 2:  # some start at zero, and would hide everything
                weight.normal_(std=weight.shape[1] ** -0.5)
    return module, x, other


def questions(budget: Budget) -> list[Question]:
    def still(text: str, metric: str, those: list[str]) -> Question:
        def effect(runs: BySeed) -> float:
            return max(float(runs[name][metric]) for name in those)

        return Question(text, effect, threshold=ROUNDING, side="below", every_seed=True)

    def moving(text: str, metric: str, those: list[str], threshold: float = ALL) -> Question:
        def effect(runs: BySeed) -> float:
            return min(float(runs[name][metric]) for name in those)

        return Question(text, effect, threshold=threshold, side="above", every_seed=True)

    models = list(PRESETS)
    named = ", ".join(models)
    return [
        still("MLP: no token's output changes when another token is replaced", "others", ["MLP"]),
        moving("attention: every token's does (share of pairs)", "share_of_others", ["attention"]),
        still(f"{named}: no logits change when a later token is replaced", "earlier", models),
        moving(f"{named}: all from that token on do (share of pairs)", "share_from_there_on", models),
        moving("with a norm over time, logits change when a later token is replaced", "earlier", [LEAKING], VISIBLE),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    def dots(label: str, variant: str, colour: str) -> ChartLine:
        """Of the first seed; of the others it looks the same."""
        return ChartLine(label, [(j, t) for j, t in runs.metrics[variant][0]["changed"]], colour, connected=False)

    def chart(title: str, *lines: ChartLine) -> Chart:
        return Chart(title, "token that is replaced", "outputs that change", lines, height=300)

    return [
        chart("Attention and MLP", dots("attention", "attention", "a"), dots("MLP", "MLP", "b")),
        chart("A GPT: itself and later ones", dots("Llama", "llama", "c")),
        chart("The same GPT with BatchNorm, in training: all of them", dots("Llama with BatchNorm", LEAKING, "d")),
    ]


CLAIM = Claim(
    number=27,
    name="token-mixing",
    kind="exact",
    statement=(
        "The MLP never mixes tokens, attention does; and a causal model's logits at a place do not change when a later "
        "token does."
    ),
    source="Notes on residuals; Vaswani et al. 2017, “Attention Is All You Need”.",
    design=(
        f"{TOKENS} tokens, of which one after the other is replaced: through an MLP, through attention that is not "
        "causal, and through small GPTs of every preset with random weights, also where presets start with zeros. To "
        "see that a leak would be found, a GPT whose norm shares statistics along time goes through the same."
    ),
    rule=(
        f"Supported if, for every seed, what must not change does not by {ROUNDING:g} of the output's size, and at "
        f"least {ALL:.0%} of what must does by more than {VISIBLE:g}."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "Tokens meet in attention only, and norms are the one other place where they could: a norm over time leaks "
            "the future into a causal model, which could then look better in training than it can ever be in use."
        ),
        "contradicted": "Something sees tokens that it must not, or is blind to some that it must see: a bug.",
        "inconclusive": "The changes are too close to rounding to tell.",
    },
)
