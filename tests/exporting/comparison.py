"""Compare an exported page with Python, token by token.

    python -m tests.exporting.comparison RUN [--prompts 1000] [--tokens 32] [--weights int8]

Both continue the same prompts, at temperature 0 and at temperature 1 with the same seed. Rounding differs, since torch
adds in another order than a browser: at temperature 1 a different token is possible where the random number is next to
a boundary between two tokens. Each such case is listed.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import normscope
from normscope.data.tokenizers import Tokenizer
from normscope.generate.config import GenerationConfig
from normscope.generate.sampling import sample_token, uniform
from normscope.generate.sequence import TokenSequence
from normscope.generate.tokens import generate_tokens
from normscope.models.gpt import GPT
from tests.browser import open_browser
from tests.exporting.browser import open_page

BOUNDARY = 1e-5
"""A draw may differ within this distance of a boundary of the cumulative distribution."""

GENERATE = """({prompts, settings}) => prompts.map((prompt) => normscope.generate({prompt, ...settings}))"""


@dataclass(frozen=True)
class Difference:
    """The first token in which page and Python differ.

    Args:
        prompt: Index of the prompt.
        position: Index among the generated tokens.
        is_at_boundary: Whether another token is sampled if the random number changes by `BOUNDARY`.
    """

    prompt: int
    position: int
    is_at_boundary: bool


def compare(
    page: Any, model: GPT, tokenizer: Tokenizer, prompts: Sequence[list[int]], **settings: Any
) -> list[Difference]:
    """Generate from each prompt in the page and in Python; returns where they first differ."""
    eos, vocabulary = tokenizer.eos_token_id, tokenizer.vocab_size
    ours = generate_tokens(model, prompts, stop_tokens=(eos,), vocabulary=vocabulary, **settings)
    theirs = [
        one
        for first in range(0, len(prompts), 50)  # in parts, so that no call takes minutes
        for one in page.evaluate(GENERATE, {"prompts": prompts[first : first + 50], "settings": settings})
    ]
    found = []
    for i, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        ends = [[*our.tokens, our.finish_reason], [*their["tokens"], their["finish_reason"]]]
        if ends[0] != ends[1]:
            same = next(k for k, pair in enumerate(zip(*ends, strict=False)) if pair[0] != pair[1])
            sequence = TokenSequence(
                prompts[i], prompt=i, sample=0, context=model.config.context, vocabulary=vocabulary, stop_tokens=(eos,)
            )
            for token in our.tokens[:same]:
                sequence.append(token)
            found.append(
                Difference(i, same, _is_at_boundary(model, sequence, vocabulary, GenerationConfig(**settings)))
            )
    return found


def _is_at_boundary(model: GPT, sequence: TokenSequence, vocabulary: int, config: GenerationConfig) -> bool:
    with torch.inference_mode():
        logits = model(torch.tensor([sequence.window]))[0, -1].double().numpy()[:vocabulary]
    u = uniform(config.seed, sequence.sample, len(sequence.tokens))
    draws = (min(max(u + step, 0.0), np.nextafter(1.0, 0.0)) for step in (-BOUNDARY, BOUNDARY))
    return len({sample_token(logits, config, draw, sequence.seen) for draw in draws}) > 1


def make_prompts(tokens: Sequence[int], count: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Pieces of a text, of 1 to `longest` tokens."""
    generator = np.random.default_rng(seed)
    starts = generator.integers(0, max(1, len(tokens) - longest), count)
    lengths = generator.integers(1, longest + 1, count)
    return [[int(token) for token in tokens[start : start + size]] for start, size in zip(starts, lengths, strict=True)]


def run_prompts(run: Path, count: int) -> list[list[int]]:
    """Pieces of the validation text of a run."""
    text = normscope.open_run(run).corpus().validation
    return make_prompts([int(token) for token in text.window(0, min(len(text), 100_000))], count, longest=24)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare an exported page with Python.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--weights", default="int8")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        path = normscope.export(options.run, weights=options.weights, out=Path(folder) / "page.html").path
        model, tokenizer = normscope.load(path)
        prompts = run_prompts(options.run, options.prompts)
        with open_page(browser, path) as page:
            for temperature in (0.0, 1.0):
                start = time.perf_counter()
                settings = {"max_new_tokens": options.tokens, "temperature": temperature, "seed": 7}
                found = compare(page, model, tokenizer, prompts, **settings)
                print(
                    f"temperature {temperature:g}: {len(prompts)} prompts x {options.tokens} tokens, "
                    f"{len(found)} different, {time.perf_counter() - start:.0f} s"
                )
                for one in found:
                    print(f"  {one}")


if __name__ == "__main__":
    main()
