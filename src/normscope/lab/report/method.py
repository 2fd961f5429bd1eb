"""How verdicts come about: the same words on the page and in the README."""

from normscope.lab.study import FIRST_SEED
from normscope.lab.tuning import FIRST_TUNING_SEED
from normscope.lab.verdict import CONFIDENCE

METHOD = {
    "Verdicts": (
        "A claim is supported if every effect's whole interval lies on the claim's side of the line, contradicted if "
        "one lies wholly on the other, and inconclusive otherwise. What has to hold for every seed, as an identity "
        "does, leaves nothing to chance: its ends are the least and the greatest of the seeds, and a single seed on "
        "the wrong side contradicts it."
    ),
    "Intervals": (
        "Variants are compared seed by seed, with the same data in the same order; intervals are Student's, of the "
        "mean over the seeds. Where a claim asks several things that are left to chance, their intervals are wider, so "
        f"that all hold together with {CONFIDENCE:.0%}: one part is enough to contradict a claim, and many parts "
        "give chance many tries. Support needs every part at once and so would not need wider ones. The same intervals "
        "decide both, as was settled before the run, which is too careful with support and never too bold."
    ),
    "Learning rates": (
        "They are tuned for each variant by the same means, unless a claim asks what happens at the rate of another. "
        f"That is done with other seeds, from {FIRST_TUNING_SEED} on, than those that judge, from {FIRST_SEED} on. The "
        "choice of a rate has chance in it too, and that is not in the intervals."
    ),
    "Reach": (
        "Intervals speak of chance from run to run on this data and with models of this size. They say nothing of "
        "other data or of larger models."
    ),
}
"""Paragraphs by what they are about."""
