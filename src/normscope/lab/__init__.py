"""The lab: claims from the literature, each tested by a rule that was fixed before the run.

claims/         one file per claim: statement, source, variants, metrics, questions
toolkit         everything a claim file needs
trials/         what can be run: training on text and on images, and the data for it
catalog         all claims, by name
budget          how much work: quick or full
trial, store    one run with one seed, and the cache of its metrics
code_version    the code and libraries that metrics depend on
workers         processes on this machine, or Ray
tuning, study   from a claim to its trials: learning rates first, then every variant with every seed
scheduler       runs the trials of many studies in parallel; `run_claims` puts it all together
statistics      confidence intervals of paired differences
verdict         questions and answers: supported, contradicted, inconclusive
variant_runs, outcome   all metrics of a claim, and its result as JSON
report/         HTML, Markdown and terminal reports
compare/        the same for your own models and text: `normscope compare`
"""
