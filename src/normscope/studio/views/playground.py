"""The tab "Playground": generate text token by token, and look at how the model came to each token."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from msgspec import Meta

from normscope.data.tokenizers import DecodeStream, Tokenizer
from normscope.errors import ConfigError, NormscopeError
from normscope.generate.config import GenerationConfig
from normscope.generate.sampling import FloatArray, probabilities
from normscope.generate.tokens import Generation, TokenEvent
from normscope.inspection.attention_maps import attention_maps
from normscope.inspection.logit_lens import logit_lens
from normscope.models.gpt import GPT
from normscope.runs.run import Run
from normscope.runs.sample import TEMPERATURE
from normscope.studio.endpoints import Endpoint, Name, NoArguments
from normscope.studio.state import StudioState
from normscope.studio.token_text import token_text

MAX_NEW_TOKENS = 512
MAX_PROMPT = 20_000
"""Characters of a prompt."""
MAX_MAP = 256
"""Tokens of an attention map: it grows with their square. Of a longer window, a part is shown."""
MAX_WEIGHTS = 2**28
"""Attention weights computed for a map, of all blocks and heads: 1 GiB."""
ALTERNATIVES = 8
"""Tokens listed for a position."""
_MODEL = GenerationConfig()
"""Settings that leave the model's probabilities as they are."""

TokenList = Annotated[list[Annotated[int, Meta(ge=0, lt=2**31)]], Meta(min_length=1, max_length=2**16)]


class ModelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A checkpoint of a run: "best", "last" or a step."""

    run: Name
    checkpoint: Annotated[str, Meta(max_length=16)] = "best"


class GenerateRequest(ModelRequest, forbid_unknown_fields=True):
    """A prompt, and settings of `GenerationConfig`."""

    prompt: Annotated[str, Meta(max_length=MAX_PROMPT)] = ""
    max_new_tokens: Annotated[int, Meta(ge=1, le=MAX_NEW_TOKENS)] = 100
    temperature: float = TEMPERATURE
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int = 0


class AttentionRequest(ModelRequest, forbid_unknown_fields=True, kw_only=True):
    """The tokens that the model sees, and a block, counted from 0."""

    tokens: TokenList
    layer: Annotated[int, Meta(ge=0)] = 0
    stop: Annotated[int, Meta(ge=1)] | None = None
    """The map ends before this token; None: with the last one."""


class LogitLensRequest(ModelRequest, forbid_unknown_fields=True, kw_only=True):
    """The tokens that the model sees, and the token that came next."""

    tokens: TokenList
    chosen: Annotated[int, Meta(ge=0)] | None = None


def models(studio: StudioState, request: NoArguments) -> dict[str, Any]:
    """The runs that have a checkpoint, the newest first, and the default settings."""
    found = []
    for folder in studio.newest_folders():
        try:
            run = Run.open(folder)
            steps, best = run.checkpoints.steps(), run.checkpoints.best()
        except NormscopeError:  # the tab of runs says what is wrong with it
            continue
        if steps:
            size = run.config.model
            sizes = {"depth": size.depth, "heads": size.heads, "context": size.context}
            found.append({"name": folder.name, "steps": steps, "best": best, "prompt": run.config.prompt, **sizes})
    limits = {"max_new_tokens": MAX_NEW_TOKENS, "prompt": MAX_PROMPT, "map": MAX_MAP}
    defaults = {**asdict(_MODEL), "temperature": TEMPERATURE, "max_new_tokens": 100}
    return {"models": found, "limits": limits, "defaults": defaults}


def generate(studio: StudioState, request: GenerateRequest) -> Iterator[dict[str, Any]]:
    """Stream the tokens of a text with their probabilities."""
    model, tokenizer = studio.load(request.run, request.checkpoint)
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    config = GenerationConfig(**{name: getattr(request, name) for name in names})
    prompt = tokenizer.with_start(tokenizer.encode(request.prompt)).tolist() or [tokenizer.start_token_id]
    stop = (tokenizer.eos_token_id,) if tokenizer.has_eos else ()
    generation = Generation(model, [prompt], config, stop_tokens=stop, vocabulary=tokenizer.vocab_size)
    return _tokens(generation, tokenizer, config)


def _tokens(generation: Generation, tokenizer: Tokenizer, config: GenerationConfig) -> Iterator[dict[str, Any]]:
    (sequence,) = generation.sequences
    stream = tokenizer.stream()
    yield {"prompt": [_text_token(tokenizer, token, stream) for token in sequence.tokens]}
    start, seen = sequence.window_start, sequence.seen
    for event in generation:
        token = tokenizer.eos_token_id if event.token is None else event.token
        yield {
            **_text_token(tokenizer, token, stream),
            **_choice(event, tokenizer, token, config, seen),
            "start": start,
        }
        start, seen = sequence.window_start, sequence.seen
    yield {"finish_reason": sequence.finish_reason, "notices": sequence.notices}


def _choice(
    event: TokenEvent, tokenizer: Tokenizer, token: int, config: GenerationConfig, seen: np.ndarray[Any, Any]
) -> dict[str, Any]:
    """How likely the token and its alternatives were, by the model and after the sampling settings."""
    by_model, sampled = probabilities(event.logits, _MODEL), probabilities(event.logits, config, seen)
    listed = list(dict.fromkeys([*_top(by_model, ALTERNATIVES), token]))
    alternatives = [
        {**_token(tokenizer, other), "probability": by_model[other], "sampled": sampled[other]} for other in listed
    ]
    return {"probability": by_model[token], "sampled": sampled[token], "alternatives": alternatives}


def attention(studio: StudioState, request: AttentionRequest) -> dict[str, Any]:
    """The attention weights of all heads of a block: `weights[head][query][key]`.

    The model sees all tokens; queries and keys are the last `MAX_MAP` of them before `stop`.
    """
    count = len(request.tokens)
    model, _ = studio.load(request.run, request.checkpoint)
    if request.layer >= model.config.depth:
        raise ConfigError(f"there is no block {request.layer}: the model has {model.config.depth}")
    if count > model.config.context:
        raise ConfigError(f"{count} tokens exceed the model's context of {model.config.context}")
    if model.config.depth * model.config.heads * count**2 > MAX_WEIGHTS:
        raise ConfigError(f"the attention weights of {count} tokens are too many for this model: use a shorter text")
    stop = min(request.stop or count, count)
    shown = slice(max(0, stop - MAX_MAP), stop)
    maps = attention_maps(model, _batch(model, request.tokens))[request.layer, 0, :, shown, shown]
    return {"weights": np.round(maps.double().numpy(), 4)}


def lens(studio: StudioState, request: LogitLensRequest) -> dict[str, Any]:
    """What the model would predict after the embedding and after each block: the likeliest tokens, and the chosen."""
    model, tokenizer = studio.load(request.run, request.checkpoint)
    chosen = None if request.chosen is None else tokenizer.check_token(request.chosen)
    logits = logit_lens(model, _batch(model, request.tokens), last_only=True)[:, 0, 0, : tokenizer.vocab_size]
    rows = []
    for blocks, row in enumerate(logits.double().numpy()):
        by_model = probabilities(row, _MODEL)
        top = [{**_token(tokenizer, other), "probability": by_model[other]} for other in _top(by_model, ALTERNATIVES)]
        mine = {} if chosen is None else {"chosen": by_model[chosen], "rank": int((by_model > by_model[chosen]).sum())}
        rows.append({"blocks": blocks, "top": top, **mine})
    return {"rows": rows}


def _batch(model: GPT, tokens: list[int]) -> torch.Tensor:
    if max(tokens) >= model.config.vocab_size:
        raise ConfigError(f"token id {max(tokens)} is not in the model's vocabulary of {model.config.vocab_size}")
    return torch.tensor([tokens])


def _top(values: FloatArray, count: int) -> list[int]:
    """The indices of the largest values, largest first; ties by index."""
    ranked: list[int] = np.argsort(-values, kind="stable")[:count].tolist()
    return ranked


def _token(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    return {"id": token, "text": token_text(tokenizer, token)}


def _text_token(tokenizer: Tokenizer, token: int, stream: DecodeStream) -> dict[str, Any]:
    """A token of a text: `shown` is the text that is complete with it, empty while a character goes on."""
    if tokenizer.has_eos and token == tokenizer.eos_token_id:
        return _token(tokenizer, token)
    return {**_token(tokenizer, token), "shown": stream.push(token)}


ENDPOINTS: dict[str, Endpoint] = {
    "playground/models": models,
    "playground/generate": generate,
    "playground/attention": attention,
    "playground/lens": lens,
}
