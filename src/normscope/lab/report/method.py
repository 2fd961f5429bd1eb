"""How verdicts are reached: shown on the page and in the README."""

from normscope.lab.results.verdict import CONFIDENCE
from normscope.lab.running.run_claims import FIRST_SEED
from normscope.lab.running.tuning import FIRST_TUNING_SEED

METHOD = {
    "Verdicts": """A claim is supported if the whole interval of every effect lies on the claimed side of its threshold,
        contradicted if one lies wholly on the other side, and inconclusive otherwise. What has to hold for every seed,
        as an identity does, involves no seed noise: its interval runs from the minimum to the maximum over the seeds,
        and a single seed on the wrong side contradicts it.""",
    "Intervals": f"""Variants are compared seed by seed, with the same data in the same order; intervals are Student's t
        intervals of the mean over the seeds. If a claim asks several questions with seed noise, their intervals are
        widened so that all hold jointly with {CONFIDENCE:.0%} (Bonferroni): one part is enough to contradict a claim,
        so many parts give noise many chances. Support requires every part at once and would not need it. The same
        intervals decide both, as fixed before the run, which makes support conservative.""",
    "Learning rates": f"""They are tuned for each variant in the same way, unless a claim asks what happens at another
        variant's learning rate. Tuning uses seeds from {FIRST_TUNING_SEED} on, verdicts seeds from {FIRST_SEED} on. The
        noise in the choice of a learning rate is not part of the intervals.""",
    "Scope": """Intervals describe the variation between runs on this data and with models of this size. They say
        nothing about other data or larger models.""",
}
"""Paragraphs by heading."""
METHOD = {heading: " ".join(text.split()) for heading, text in METHOD.items()}
