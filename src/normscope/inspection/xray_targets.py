"""Targets of `normscope xray`: a model, its batches, and an optimizer step."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.checks import check_seed
from normscope.data.packed_batches import validation_batches
from normscope.errors import ConfigError, NormscopeError, WeightsError
from normscope.inspection.user_function import call_function, check_call
from normscope.interop.checkpoint import build_model
from normscope.interop.files.safetensors_file import open_sharded
from normscope.interop.formats import HUGGINGFACE
from normscope.models.gpt import GPT
from normscope.models.presets import preset
from normscope.models.size import MAX_BLOCKS
from normscope.runs.read_source import Source
from normscope.runs.run import Run
from normscope.storage.json_files import read_json
from normscope.tracing.nested_tensors import tensors_in
from normscope.training.config import TrainConfig
from normscope.training.memory_estimate import check_memory
from normscope.training.optimizers.groups import OptimizerGroup
from normscope.training.optimizers.lazy_torch import AdamW
from normscope.training.recipes import recipe

BATCH_SIZE = 4
"""Sequences per batch."""
_LR = 1e-3
_USE_FUNCTION = "use a function that returns the model and a batch: path/to/file.py:function"


@dataclass(frozen=True)
class XrayTarget:
    """A model to inspect.

    Args:
        label: name shown in the report.
        model: the model.
        loss: compute the loss of a batch, by its index.
        step: take an optimizer step.
        cached: run the model with a KV cache; None if it has none.
        notices: notes for the report, such as a substitute loss.
        steps: number of optimizer steps taken before; None if unknown.
    """

    label: str
    model: nn.Module
    loss: Callable[[int], Tensor]
    step: Callable[[], object]
    cached: Callable[[], object] | None = None
    notices: dict[str, None] = field(default_factory=dict)
    steps: int | None = None


def from_run(folder: Path, checkpoint: str | int, seed: int = 0) -> XrayTarget:
    """A checkpoint of a run, on the first batches of its validation data. Only reads the run folder.

    An imported model has no data and runs on random tokens.
    """
    run = Run.open(folder)
    if run.config.imported is not None:
        return _on_random_tokens(str(folder), run.load_model(checkpoint)[0], seed)
    model, done = run.load_trained_model(checkpoint)
    corpus, train = run.corpus(verify=["validation"]), run.config.train
    optimizer = OptimizerGroup(model, train)
    expected = optimizer.expected_tensors() if done else {}
    optimizer.load(run.checkpoints.open(done).tensors("optimizer", expected))
    several = list(islice(validation_batches(corpus, model.config.context, BATCH_SIZE), 64))

    def batch(number: int) -> tuple[Tensor, ...]:
        return tuple(map(torch.from_numpy, several[number % len(several)]))

    # After the last step the schedule is at zero, so use the learning rate of the last step.
    lr_scale = train.lr_schedule().lr_scale(min(done, train.steps - 1))
    subject = _of_gpt(f"{folder} step {done}", model, batch, lambda: optimizer.step(lr_scale))
    return dataclasses.replace(subject, steps=done)


def from_preset(name: str, depth: int | None, settings: Mapping[str, Any], seed: int) -> XrayTarget:
    """A preset at initialization, as `normscope train --preset NAME` starts, on random tokens."""
    chosen = recipe("dial", depth)
    config = preset(name, **{"vocab_size": chosen.vocab_size, **chosen.model, **settings})
    train = TrainConfig(**{**chosen.train, "batch": BATCH_SIZE, "device": "cpu"})
    check_memory(config, train)
    check_seed(seed=seed)
    torch.manual_seed(seed)
    model = GPT(config)
    optimizer = OptimizerGroup(model, train)
    tokens = _random_tokens(config.vocab_size, config.context, seed)
    return _of_gpt(f"{name} of depth {config.depth}", model, tokens, lambda: optimizer.step(1.0))


def from_checkpoint(source: Source, seed: int) -> XrayTarget:
    """A checkpoint of another tool, on random tokens. A Hugging Face folder that is not supported is loaded with
    transformers."""
    assert source.read is not None
    try:
        checkpoint = source.read(source.path)
        model = build_model(checkpoint)
    except WeightsError as error:
        if source.kind != HUGGINGFACE:
            raise
        open_sharded(source.path)  # raises for damaged weights, which transformers cannot read either
        return _of_transformers(source.path, seed, error)
    target = _on_random_tokens(str(source.path), model, seed)
    return dataclasses.replace(target, notices=dict.fromkeys(checkpoint.notices))


def _on_random_tokens(label: str, model: GPT, seed: int) -> XrayTarget:
    tokens = _random_tokens(model.config.vocab_size, min(model.config.context, 128), seed)
    return _of_gpt(label, model, tokens, _adamw_step(model))


def from_function(target: str, seed: int) -> XrayTarget:
    """The model and batch that a user function returns; without a loss, one is derived from the output."""
    torch.manual_seed(seed)  # the same model and batch each time
    model, batch, loss_of = call_function(target)
    check_call(target, model, batch)
    notices: dict[str, None] = {}

    def loss(_: int) -> Tensor:
        if isinstance(batch, Mapping):
            output = model(**batch)
        else:
            output = model(*batch) if isinstance(batch, tuple | list) else model(batch)
        if loss_of is None:
            return _loss_from_output(output, target, notices)
        found = loss_of(output)
        if not isinstance(found, Tensor) or found.numel() != 1:
            got = f"a tensor of {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(f"the loss of {target} returned {got}\nfix: return a scalar tensor")
        return found.reshape(())

    return XrayTarget(target, model, loss, _adamw_step(model), notices=notices)


def _of_gpt(
    label: str, model: GPT, batch: Callable[[int], tuple[Tensor, ...]], step: Callable[[], object]
) -> XrayTarget:
    def cached() -> None:
        inputs, *_ = batch(0)
        first = max(1, inputs.shape[1] // 2)
        cache = model.new_cache(len(inputs), inputs.shape[1])
        for part in inputs.split([first, *[1] * (inputs.shape[1] - first)], dim=1):
            model(part, cache=cache, capped=False)  # as in the loss

    return XrayTarget(label, model, lambda number: model.loss(*batch(number)), step, cached)


def _of_transformers(folder: Path, seed: int, refusal: NormscopeError) -> XrayTarget:
    try:
        import transformers
    except ImportError:
        why = str(refusal).partition("\nfix: ")[0]
        raise WeightsError(f"{why}\nfix: pip install 'normscope[hf]' to load it with transformers") from refusal
    kind = _class_of(transformers, folder)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        # Never run pickles or Python code from the folder.
        model = kind.from_pretrained(folder, local_files_only=True, use_safetensors=True, trust_remote_code=False)
        batch = _random_batch(model, seed)
    except NormscopeError:
        raise
    except Exception as error:  # transformers raises anything for unexpected settings
        why, _, fix = str(refusal).partition("\nfix: ")
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise WeightsError(
            f"{why}. transformers cannot load {folder} either: {reason}\nfix: {fix or _USE_FUNCTION}"
        ) from error
    if hasattr(model, "get_output_embeddings") and model.get_output_embeddings() is not None and "input_ids" in batch:
        batch["labels"] = batch["input_ids"]
    notices: dict[str, None] = {}

    def loss(_: int) -> Tensor:
        return _loss_from_output(model(**batch), str(folder), notices)

    return XrayTarget(str(folder), model, loss, _adamw_step(model), notices=notices)


def _class_of(transformers: Any, folder: Path) -> Any:
    """The transformers class that config.json names, or AutoModel.

    Refuses absurd sizes: transformers would allocate the model before comparing it with the weights.
    """
    settings = read_json(folder / "config.json", dict[str, Any], fix=_USE_FUNCTION)
    for name, value in settings.items():
        if isinstance(value, int) and value > (MAX_BLOCKS if "layer" in name else 2**31):
            raise WeightsError(f"{folder}/config.json has {name}={value}, which is implausible\nfix: {_USE_FUNCTION}")
    names = settings.get("architectures") or [""]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise WeightsError(f"{folder}/config.json has architectures={names!r:.40}, no names\nfix: {_USE_FUNCTION}")
    try:
        kind = getattr(transformers, names[0], None)
    except Exception:  # it cannot be imported here
        kind = None
    return kind if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel) else transformers.AutoModel


def _random_batch(model: Any, seed: int) -> dict[str, Tensor]:
    """A random batch for a transformers model: tokens or images."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    if model.main_input_name == "input_ids":
        length = min(128, getattr(config, "max_position_embeddings", 128) // 2 or 1)
        vocab_size = config.get_text_config().vocab_size
        return {"input_ids": torch.randint(vocab_size, (BATCH_SIZE, length), generator=generator)}
    if model.main_input_name == "pixel_values":
        size = config.image_size
        height, width = size if isinstance(size, tuple | list) else (size, size)
        return {"pixel_values": torch.randn(BATCH_SIZE, config.num_channels, height, width, generator=generator)}
    what = f"a batch of {model.main_input_name} for {type(model).__name__}"
    raise ConfigError(f"cannot create {what}\nfix: {_USE_FUNCTION}")


def _loss_from_output(output: Any, target: str, notices: dict[str, None]) -> Tensor:
    """The loss in the output, the output itself if it is a scalar, or a randomly weighted mean of the output.

    A plain mean or mean square would not do: after a norm they are nearly constant, with almost no gradient.
    """
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    found = [own] if isinstance(own, Tensor) else [t for t in tensors_in(output) if t.is_floating_point()]
    if not found:
        raise ConfigError(
            f"the model of {target} returns no floating-point tensor\nfix: use --forward-only, or return a loss"
        )
    if found[0].numel() == 1:
        return found[0].reshape(())
    notices["no loss given: the gradients are of a randomly weighted mean of the output"] = None
    # A separate generator, so that dropout is not affected.
    weights = torch.randn(found[0].shape, generator=torch.Generator().manual_seed(0))
    return (found[0].float() * weights.to(found[0].device)).mean()


def _random_tokens(vocab_size: int, length: int, seed: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    def batch(number: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed + number)
        tokens = torch.randint(vocab_size, (BATCH_SIZE, length + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    return batch


def _adamw_step(model: nn.Module) -> Callable[[], object]:
    """An AdamW step. The optimizer is created at the first step: a model may have no parameters."""
    optimizers: list[AdamW] = []

    def step() -> None:
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        if not weights:
            raise ConfigError("the model has no trainable parameters\nfix: remove --step")
        if not optimizers:
            optimizers.append(AdamW(weights, lr=_LR))
        optimizers[0].step()

    return step
