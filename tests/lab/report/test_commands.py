"""The commands in a README reproduce its outcomes."""

from pathlib import Path

from normscope.lab.claim import Budget
from normscope.lab.report.overview import commands
from normscope.lab.report.page import lab_markdown
from tests.lab.made import made_claim, made_outcome

LAB = Path("lab")
OWN = {"name": "my tale.txt", "sha256": "0" * 64}
LEARNT = {name: {**one, "text": OWN} for name, one in made_outcome().settings.items()}
QUICK, FULL = Budget("quick", 5), Budget("full", 12)


def test_all_claims_are_one_command() -> None:
    outcomes = [made_outcome(claim=name, budget=QUICK) for name in ("a", "b")]
    assert commands(outcomes, ["a", "b"], LAB) == ["normscope lab run --all"]
    assert commands(outcomes, ["a", "b", "c"], LAB) == ["normscope lab run a b"]


def test_options_appear_only_if_not_default() -> None:
    outcomes = [
        made_outcome(claim="a", budget=QUICK),
        made_outcome(claim="b", budget=FULL),
        made_outcome(claim="c", budget=Budget("full", 3)),
        made_outcome(claim="d", budget=QUICK),
    ]
    assert commands(outcomes, "abcd", Path("docs/lab")) == [
        "normscope lab run a d --out docs/lab",
        "normscope lab run b --budget full --out docs/lab",
        "normscope lab run c --budget full --seeds 3 --out docs/lab",
    ]


def test_data_option_is_shared_with_claims_without_text() -> None:
    reads, reads_none = (
        made_outcome(claim="a", budget=QUICK, settings=LEARNT),
        made_outcome(claim="b", budget=QUICK, settings={"rms": {"width": 3}}),
    )
    assert commands([reads, reads_none], "ab", LAB) == ["normscope lab run --all --data 'my tale.txt'"]
    assert commands([reads_none], "b", LAB) == ["normscope lab run --all"]
    usual = made_outcome(claim="c", budget=QUICK)
    assert commands([reads, reads_none, usual], "abc", LAB) == [
        "normscope lab run a --data 'my tale.txt'",
        "normscope lab run b c",
    ]


def test_readme_shows_the_commands() -> None:
    readme = lab_markdown([(made_claim(), made_outcome())], Path("docs/lab"))["README.md"]
    assert (
        "Made by `normscope lab run made-up --seeds 4 --out docs/lab` and "
        "`normscope lab report --markdown --out docs/lab`.\n"
    ) in readme
