"""BatchNorm in a language model is worse than LayerNorm, and PowerNorm closes part of the gap."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.text import SMALL_GPT, TEXT_MARGIN, train_text

NORMS = {"LayerNorm": "layer", "BatchNorm": "batch", "PowerNorm": "power"}
NORM_WARMUP = 0.2
"""The share of the steps in which PowerNorm still divides by the batch's own statistic."""


def variants(budget: lab.Budget) -> lab.Variants:
    steps = budget.pick(quick=340, full=4000)
    return {
        label: {
            **SMALL_GPT,
            # Batch statistics leak later tokens into earlier ones, which a GPT refuses unless this is set.
            "model": {**SMALL_GPT["model"], "norm": norm, "activation": "gelu", "allow_future_leak": norm != "layer"},
            "steps": steps,
            "norm_warmup": round(NORM_WARMUP * steps) if norm == "power" else 0,
        }
        for label, norm in NORMS.items()
    }


def tuning(budget: lab.Budget) -> lab.LRTuning:
    return lab.LRTuning((3e-3, 1e-2, 3e-2, 1e-1), seeds=budget.pick(quick=1, full=3))


def questions(budget: lab.Budget) -> list[lab.Question]:
    above = "BatchNorm's loss on held-out text is above"
    gap, part = (
        f"{above} LayerNorm's by more than {TEXT_MARGIN} nats",
        f"{above} PowerNorm's, which closes part of any gap",
    )
    return [
        lab.difference(gap, "BatchNorm", "LayerNorm", threshold=TEXT_MARGIN),
        lab.difference(part, "BatchNorm", "PowerNorm"),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    unit, names = "nats per byte", list(NORMS)
    both = {
        "at the end of training": [[run["curve"][-1][1] for run in runs.metrics[norm]] for norm in NORMS],
        "on held-out text": [runs.values(norm, "loss") for norm in NORMS],
    }
    others = {"LayerNorm": TEXT_MARGIN, "PowerNorm": 0.0}
    pairs = {"difference": [("BatchNorm", other) for other in others]}
    title, thresholds = "BatchNorm's held-out loss minus another norm's", ("threshold", list(others.values()))
    return [
        lab.interval_categories("Loss in training and on held-out text", "norm", unit, both, names),
        lab.differences(
            title, "other norm", unit, runs, "loss", pairs, list(others), questions, category_lines=thresholds
        ),
    ]


CLAIM = lab.Claim(
    number=18,
    name="batchnorm-on-text",
    kind="trained",
    statement="BatchNorm in a language model is worse than LayerNorm; PowerNorm closes part of the gap.",
    source="""Notes on normalization; Shen, Yao, Gholami, Mahoney and Keutzer 2020, “PowerNorm: Rethinking Batch
        Normalization in Transformers”.""",
    design="""A GPT of two pre-norm blocks with GELU on the text, with LayerNorm over the features of a token, or
        BatchNorm or PowerNorm of each feature over all tokens of a batch; all else is the same. PowerNorm uses the
        batch's own statistic for a fifth of the steps and its running statistic from then on. The loss on held-out
        text is compared, where BatchNorm and PowerNorm use their running statistics.""",
    rule=f"""Supported if the interval of BatchNorm's loss minus LayerNorm's is above {TEXT_MARGIN} nats, and that
        of BatchNorm's minus PowerNorm's above 0: closing any part of the gap counts. If the first does not hold,
        there is no noticeable gap, and the second only says which of the two is better.""",
    experiment=lab.Experiment(variants, train_text, questions, charts, tuning),
    supported="""Normalize each token separately. If statistics have to be shared between tokens, PowerNorm was the
        better of the two in a model of this size.""",
    contradicted="""The claim does not hold in a model of this size: the table says whether BatchNorm is not
        noticeably worse than LayerNorm, so that there is no gap to close, or PowerNorm is not better than
        BatchNorm, or both.""",
    inconclusive="""Part of it cannot be distinguished from seed noise; the table says which. LayerNorm needs no
        running statistics, nor a choice between them and those of the batch.""",
    remark="""In a causal model BatchNorm's training statistics include later tokens, so they may lower its training
        loss; on held-out text it has only its running statistics, which leak nothing. The notes name two arguments
        against BatchNorm, padding and features whose meaning differs from word to word; there is no padding here.
        PowerNorm is the paper's algorithm, but not its authors' full recipe: their code uses the batch's statistic
        for thousands of steps, more than there are here, and first scales each token by its own root mean square,
        in groups of features. So this says nothing about the full recipe.""",
    revised="part of its design",
    first_verdict="contradicted",
)
