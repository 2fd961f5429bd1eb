"""Write the table of docs/export.md: which model goes into which format, and the largest difference measured.

    python -m tests.exporting.matrix [--write]

Each cell exports a small model with random weights and a tokenizer of bytes, and is proved in the target's runtime.
"""

import argparse
import tempfile
from pathlib import Path

from normscope.errors import ConfigError
from normscope.exporting.export import FORMATS, export_source
from tests.exporting.models import small_source

PAGE = Path(__file__).parents[2] / "docs/export.md"
START, END = "<!-- python -m tests.exporting.matrix --write -->", "<!-- end -->"
MODELS = ("gpt2", "llama", "nanochat", "nanochat-2026-07")


def cell(to: str, weights: str, model: str) -> str:
    source = small_source(model, "bytes", width=64)
    try:
        FORMATS[to].check(source)
    except ConfigError:
        return "refused"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"m{FORMATS[to].suffix}"
        proof = export_source(source, to, path, weights, "require").proof
    assert proof is not None
    assert proof.diff is not None
    assert proof.diff.behavior is not None
    rounding = f" ({proof.rounding:.2g})" if proof.rounding > 0 else ""
    return f"{proof.diff.behavior.distance:.0e}{rounding}"


def table() -> str:
    lines = [f"| format | weights | {' | '.join(MODELS)} |", f"|---|---|{'---|' * len(MODELS)}"]
    for to, export_format in FORMATS.items():
        for weights in export_format.weights:
            cells = [cell(to, weights, model) for model in MODELS]
            if set(cells) == {"refused"}:
                continue
            lines.append(f"| {to} | {weights} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the table of docs/export.md.")
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.partition(START)[0], text.partition(END)[2]
        PAGE.write_text(f"{before}{START}\n{table()}\n{END}{after}", encoding="utf-8")
    else:
        table()


if __name__ == "__main__":
    main()
