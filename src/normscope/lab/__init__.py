"""The lab: claims from the literature, each tested by a rule that was fixed before the run.

claims/     the claims by topic: NAME.toml has the statement and the decision rule, NAME.py the experiment
toolkit     everything a claim file needs: types, questions, lines of charts
trials/     what can be run: training on text and on images, and the data for it
claim       what a claim consists of, and how much work: quick or full; `catalog` has all claims by name
running/    from a claim to its metrics: trials and their cache, workers, scheduler, tuning, time estimates
progress    progress bar and remaining time
results/    confidence intervals, verdicts, and the outcome of a claim as JSON
report/     HTML, Markdown and terminal reports
compare/    the same for your own models and text: `normscope compare`
"""
