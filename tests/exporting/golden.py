"""Values that the TypeScript of the exported page is tested with, computed by Python.

python -m tests.exporting.golden      # writes web/src/model/golden.json
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from normscope.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from normscope.data.tokenizers.huggingface import train_bpe
from normscope.generate.config import GenerationConfig
from normscope.generate.sampling import sample_token, uniform

PATH = Path(__file__).parents[2] / "web/src/model/golden.json"

TEXTS = [
    "",
    "hello world",
    "It's the king's  ring,\n\n\tand they'll  say: 1234 x 56!   ",
    "naïve café — “quoted” 你好，世界 🙂👩‍🚀",
    "<|end|> is ordinary text, and <|endoftext|> too",
    "spaces\u00a0that\u2003are\u3000not\u0085ascii\ufeff, and a zero\u200bwidth",
    "aaaaaaaaaaaaaaaaaaaa constructor __proto__ toString",
    "DON'T shout: it'S ½ of ²³ Ⅷ",
]

SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 0.5},
    {"top_k": 3},
    {"top_k": 50},
    {"top_p": 0.6},
    {"top_p": 1.0},
    {"min_p": 0.2},
    {"repetition_penalty": 1.7},
    {"temperature": 1.3, "top_k": 9, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.2},
]


def golden() -> dict[str, Any]:
    return {"uniform": _uniform(), "sampling": _sampling(), "tokenizers": _tokenizers(), "erf": _erf()}


def _uniform() -> list[Any]:
    cases = [(0, 0, 0), (0, 0, 5), (0, 1, 5), (7, 0, 5), (2**32, 3, 2**31), (2**64 - 1, 999_999, 4096)]
    return [[str(seed), sample, position, uniform(seed, sample, position)] for seed, sample, position in cases]


def _sampling() -> list[Any]:
    generator = np.random.default_rng(0)
    cases = []
    for settings in SETTINGS:
        config = GenerationConfig(**settings)
        for logits in (generator.normal(size=20) * 2, np.round(generator.normal(size=20))):  # the latter has ties
            seen = generator.choice(20, 6, replace=False)
            draws = [float(u) for u in generator.random(8)]
            chosen = [sample_token(logits, config, u, np.sort(seen)) for u in draws]
            cases.append(
                {
                    "logits": logits.tolist(),
                    "settings": {
                        "temperature": config.temperature,
                        "topK": config.top_k,
                        "topP": config.top_p,
                        "minP": config.min_p,
                        "repetitionPenalty": config.repetition_penalty,
                    },
                    "seen": seen.tolist(),
                    "draws": draws,
                    "tokens": chosen,
                }
            )
    return cases


def _tokenizers() -> list[Any]:
    text = "the cat and the hat, and the king's ring. It's 1234! 你好 aaaa constructor café " * 3
    tokenizers: list[Tokenizer] = [
        ByteTokenizer(),
        CharacterTokenizer.of(TEXTS),
        train_bpe([text, *TEXTS], vocab_size=400),
    ]
    cut = [[*b"caf\xc3"], [0xE4, 0xBD], [0xFF, 65, 0xC3, 0xA9, 0xF0, 0x9F, 65]]  # incomplete and invalid UTF-8
    return [
        {
            "tokenizer": json.loads(tokenizer.to_json()),
            "vocab_size": tokenizer.vocab_size,
            "eos_token_id": tokenizer.eos_token_id,
            "encoded": [[one, tokenizer.encode(one).tolist()] for one in TEXTS],
            "decoded": [
                [tokens, tokenizer.decode(tokens)]
                for tokens in (cut if tokenizer.kind != "characters" else [[3, 1, tokenizer.eos_token_id, 2]])
            ],
        }
        for tokenizer in tokenizers
    ]


def _erf() -> list[Any]:
    return [[x, math.erf(x)] for x in (0.0, 1e-9, 0.01, -0.3, 0.5, 1.0, 1.015625, -1.7, 2.5, 3.999, -5.5, 5.99, 7.0)]


def to_json() -> str:
    return json.dumps(golden(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(to_json())
