"""RMSNorm is as good as LayerNorm in a GPT, whatever the activation."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.text import SMALL_GPT, TEXT_MARGIN, train_text

ACTIVATIONS = ("relu", "gelu", "swiglu", "relu2")
NORMS = ("layer", "rms")


def variants(budget: lab.Budget) -> lab.Variants:
    return {
        f"{norm} {activation}": {
            **SMALL_GPT,
            "model": {**SMALL_GPT["model"], "norm": norm, "activation": activation},
            "steps": budget.pick(quick=170, full=2000),
        }
        for activation in ACTIVATIONS
        for norm in NORMS
    }


def tuning(budget: lab.Budget) -> lab.LRTuning:
    return lab.LRTuning((3e-3, 1e-2, 3e-2), seeds=budget.pick(quick=1, full=3))


def questions(budget: lab.Budget) -> list[lab.Question]:
    def excess(activation: str) -> lab.Question:
        text = f"with {activation} RMSNorm's loss is at most {TEXT_MARGIN} nats above LayerNorm's"
        return lab.difference(text, f"rms {activation}", f"layer {activation}", threshold=TEXT_MARGIN, side="below")

    return [excess(activation) for activation in ACTIVATIONS]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    axes = "activation", "nats per byte"
    pairs = {"difference": [(f"rms {activation}", f"layer {activation}") for activation in ACTIVATIONS]}
    lines = {norm: [f"{norm} {activation}" for activation in ACTIVATIONS] for norm in NORMS}
    title, margin = "RMSNorm's loss minus LayerNorm's, paired by seed", [("the margin", TEXT_MARGIN)]
    return [
        lab.differences(title, *axes, runs, "loss", pairs, ACTIVATIONS, questions, reference_lines=margin),
        lab.categories("Loss on held-out text", *axes, runs, "loss", lines, ACTIVATIONS),
    ]


CLAIM = lab.Claim(
    number=17,
    name="rmsnorm-vs-layernorm",
    kind="trained",
    statement="RMSNorm reaches LayerNorm's loss in a GPT, with ReLU, GELU, SwiGLU and ReLU².",
    source="Notes on normalization; Zhang and Sennrich 2019, “Root Mean Square Layer Normalization”.",
    design="""A GPT of two pre-norm blocks on the text, with either norm and each activation; all else is Llama's.
        LayerNorm has a bias and centers, RMSNorm does neither.""",
    rule=f"""Supported if with every activation the interval of RMSNorm's loss minus LayerNorm's is below
        {TEXT_MARGIN} nats.""",
    experiment=lab.Experiment(variants, train_text, questions, charts, tuning),
    supported="""In a model of this size RMSNorm can replace LayerNorm: it has no bias, and any loss in quality is
        too small to notice. Whether it is also faster depends on the kernel.""",
    contradicted="Keep LayerNorm with the activations where RMSNorm is behind: there, centering or the bias helps.",
    inconclusive=f"""With at least one activation these seeds leave open whether RMSNorm costs more than
        {TEXT_MARGIN} nats, which would be noticeable; the table says with which, and how much it may be. With the
        others it costs less.""",
    remark="""Fewer operations do not make RMSNorm faster by themselves; that depends on the kernel. The claim
        norm-speed measures torch's and normscope's norms on a CPU.""",
)
