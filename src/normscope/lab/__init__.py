"""The lab: claims of the field, each put to the test by a rule that was stated before the run.

claims/         one file a claim: what it says, who says so, what is compared, and what decides
trials/         what can be run: training on text and on pictures, and the data for it
catalogue       all claims, by name
budget          how much work: quick or full
trial, store    one run with one seed, and where its figures are kept, so that nothing is run twice
source          the code and the libraries that figures depend on
workers         processes on this machine, or Ray
tuning, study   from a claim to its trials: learning rates first, then every variant with every seed
schedule        many studies and as many hands as there are; `laboratory` puts it all together
statistics      intervals of paired differences
verdict         questions and answers: supported, contradicted, inconclusive
runs, outcome   all figures of a claim, and what came out, as JSON
report/         the page, the pictures and the words
compare/        the same for a question of your own
"""
