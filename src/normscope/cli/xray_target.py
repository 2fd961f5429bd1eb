"""What an x-ray is taken of: a model, the batches it is given, and what can be done with it."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from safetensors import SafetensorError
from torch import Tensor, nn

from normscope.checks import check_seed
from normscope.cli.generation_options import warn_unfinished_checkpoint
from normscope.cli.xray_function import call_function, check_call
from normscope.data.batches import windows
from normscope.diagnostics.collect.tensors import tensors_in
from normscope.errors import ConfigError, NormscopeError, WeightsError
from normscope.interop.huggingface import load_huggingface
from normscope.models.gpt import GPT
from normscope.models.presets import preset
from normscope.models.size import MAX_BLOCKS
from normscope.runs.run import Run
from normscope.runs.tensor_specs import tensor_specs
from normscope.storage.json_files import read_json
from normscope.training.config import TrainConfig
from normscope.training.memory_estimate import check_memory
from normscope.training.optimizers.groups import OptimizerGroup
from normscope.training.optimizers.lazy_torch import AdamW
from normscope.training.recipes import recipe

BATCH_SIZE = 4
"""How many windows of text a batch has."""
_RATE = 1e-3
_OWN_FUNCTION = "write a function that returns the model and a batch, and name it: path/to/file.py:function"


class _Settings(Struct):
    """What is read here of a config.json of Hugging Face's."""

    architectures: list[str] | None = None


@dataclass(frozen=True)
class XrayTarget:
    """A model, ready to be looked at.

    Args:
        label: what it is.
        model: the model itself.
        loss: the loss of the batch with this number.
        step: lets an optimiser change the weights.
        cached: gives the model a text piece by piece, with a cache; None if it has none.
        notices: what was made up for it, and has to be told with what is seen.
        steps: how many an optimiser has made before; None if that is not known.
    """

    label: str
    model: nn.Module
    loss: Callable[[int], Tensor]
    step: Callable[[], object]
    cached: Callable[[], object] | None = None
    notices: dict[str, None] = field(default_factory=dict)
    steps: int | None = None


def target_from_run(folder: Path, checkpoint: str) -> XrayTarget:
    """A checkpoint of a run, on the first windows of its validation text. The run's folder is only read."""
    run = Run.open(folder)
    warn_unfinished_checkpoint(run)
    model, done = run.load_model(checkpoint)
    corpus, train = run.corpus(verify=["validation"]), run.config.train
    optimizer = OptimizerGroup(model, train)
    optimizer.load(
        run.checkpoints.open(done).tensors("optimizer", tensor_specs(optimizer.expected_tensors() if done else {}))
    )
    several = list(_first(windows(corpus.validation, model.config.context, BATCH_SIZE), 64))

    def batch(number: int) -> tuple[Tensor, Tensor]:
        inputs, targets = several[number % len(several)]
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    # After the last step the schedule is at nothing, and a step would show nothing: it is taken as the last one was.
    lr_scale = train.lr_schedule().lr_scale(min(done, train.steps - 1))
    subject = _of_gpt(f"{folder} step {done}", model, batch, lambda: optimizer.step(lr_scale))
    return dataclasses.replace(subject, steps=done)


def target_from_preset(name: str, depth: int | None, settings: Mapping[str, Any], seed: int) -> XrayTarget:
    """The model that `normscope train --preset NAME` begins with, on random tokens."""
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


def target_from_huggingface(folder: Path, seed: int) -> XrayTarget:
    """The model in a folder as Hugging Face writes it: as a GPT of normscope's, or else by transformers itself."""
    try:
        model = load_huggingface(folder)
    except WeightsError as error:
        if isinstance(error.__cause__, SafetensorError) or not _has_safetensors(folder):
            raise  # a damaged file is nothing that transformers could read, and neither is one that is not there
        return _of_transformers(folder, seed, error)
    tokens = _random_tokens(model.config.vocab_size, min(model.config.context, 128), seed)
    return _of_gpt(str(folder), model, tokens, _adam(model))


def target_from_function(target: str, seed: int) -> XrayTarget:
    """What a function of the user's own returns; a loss that it does not return is made from the output."""
    torch.manual_seed(seed)  # so that it makes the same model and batch each time
    model, batch, loss_of = call_function(target)
    check_call(target, model, batch)
    notices: dict[str, None] = {}

    def loss(_: int) -> Tensor:
        if isinstance(batch, Mapping):
            output = model(**batch)
        else:
            output = model(*batch) if isinstance(batch, tuple | list) else model(batch)
        if loss_of is None:
            return _some_loss(output, target, notices)
        found = loss_of(output)
        if not isinstance(found, Tensor) or found.numel() != 1:
            got = f"a tensor of {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(f"the loss of {target} gave {got}\nfix: a tensor of one number, for instance its mean")
        return found.reshape(())

    return XrayTarget(target, model, loss, _adam(model), notices=notices)


def _of_gpt(
    label: str, model: GPT, batch: Callable[[int], tuple[Tensor, Tensor]], step: Callable[[], object]
) -> XrayTarget:
    def cached() -> None:
        inputs, _ = batch(0)
        first = max(1, inputs.shape[1] // 2)
        cache = model.new_cache(len(inputs), inputs.shape[1])
        for part in inputs.split([first, *[1] * (inputs.shape[1] - first)], dim=1):
            model(part, cache=cache, capped=False)  # as the loss has them

    return XrayTarget(label, model, lambda number: model.loss(*batch(number)), step, cached)


def _of_transformers(folder: Path, seed: int, refusal: NormscopeError) -> XrayTarget:
    try:
        import transformers
    except ImportError:
        why = str(refusal).partition("\nfix: ")[0]
        raise WeightsError(f"{why}\nfix: pip install 'normscope[hf]', and transformers will read it") from refusal
    _refuse_absurd_sizes(folder)
    kind = _class_of(transformers, folder)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        # Neither a pickle of weights nor Python code in the folder is ever run.
        model = kind.from_pretrained(folder, local_files_only=True, use_safetensors=True, trust_remote_code=False)
        batch = _made_up(model, seed)
    except NormscopeError:
        raise
    except Exception as error:  # whatever transformers raises of settings that it did not expect
        why, _, fix = str(refusal).partition("\nfix: ")
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise WeightsError(
            f"{why}. And transformers cannot read {folder} either: {reason}\nfix: {fix or _OWN_FUNCTION}"
        ) from error
    if hasattr(model, "get_output_embeddings") and model.get_output_embeddings() is not None and "input_ids" in batch:
        batch["labels"] = batch["input_ids"]
    notices: dict[str, None] = {}

    def loss(_: int) -> Tensor:
        return _some_loss(model(**batch), str(folder), notices)

    return XrayTarget(str(folder), model, loss, _adam(model), notices=notices)


def _class_of(transformers: Any, folder: Path) -> Any:
    """The model's class, if config.json names one of transformers'; else transformers looks for one itself."""
    names = read_json(folder / "config.json", _Settings, fix=_OWN_FUNCTION).architectures or [""]
    try:
        kind = getattr(transformers, names[0], None)
    except Exception:  # one that cannot be imported here
        kind = None
    return kind if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel) else transformers.AutoModel


def _refuse_absurd_sizes(folder: Path) -> None:
    """Transformers would build for hours, or ask for all the memory, before it found out that no weight fits."""
    settings = read_json(folder / "config.json", dict[str, Any], fix=_OWN_FUNCTION)
    for name, value in settings.items():
        if isinstance(value, int) and value > (MAX_BLOCKS if "layer" in name else 2**31):
            raise WeightsError(
                f"{folder}/config.json has {name}={value}, which no model has\nfix: download it again; {_OWN_FUNCTION}"
            )


def _has_safetensors(folder: Path) -> bool:
    """Whether there is a file of weights that can be read without running what is in it."""
    return any(path.suffix == ".safetensors" for path in folder.iterdir())


def _made_up(model: Any, seed: int) -> dict[str, Tensor]:
    """A batch for a model of transformers: random tokens, or random images."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    if model.main_input_name == "input_ids":
        length = min(128, getattr(config, "max_position_embeddings", 128) // 2 or 1)
        return {
            "input_ids": torch.randint(config.get_text_config().vocab_size, (BATCH_SIZE, length), generator=generator)
        }
    if model.main_input_name == "pixel_values":
        size = config.image_size
        height, width = size if isinstance(size, tuple | list) else (size, size)
        return {"pixel_values": torch.randn(BATCH_SIZE, config.num_channels, height, width, generator=generator)}
    raise ConfigError(
        f"a {type(model).__name__} reads {model.main_input_name}, and no batch of that kind can be made up here\n"
        f"fix: {_OWN_FUNCTION}"
    )


def _some_loss(output: Any, target: str, notices: dict[str, None]) -> Tensor:
    """The loss that the output has with it, the output itself if it is one number, or something to go back from.

    That is the output weighted by random numbers. Its mean or its mean square would not do: behind a norm they are
    nearly constant, and hardly a gradient would come back.
    """
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    found = [own] if isinstance(own, Tensor) else [t for t in tensors_in(output) if t.is_floating_point()]
    if not found:
        raise ConfigError(f"the model of {target} gives no tensor of floats\nfix: --forward-only, or return a loss too")
    if found[0].numel() == 1:
        return found[0].reshape(())
    notices["no loss was given: the gradients are those of the output's mean, weighted by random numbers"] = None
    # From a generator of its own, so that the model's dropout does not notice.
    weights = torch.randn(found[0].shape, generator=torch.Generator().manual_seed(0))
    return (found[0].float() * weights.to(found[0].device)).mean()


def _random_tokens(vocab_size: int, length: int, seed: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    def batch(number: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed + number)
        tokens = torch.randint(vocab_size, (BATCH_SIZE, length + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    return batch


def _first(items: Any, most: int) -> Any:
    return (item for item, _ in zip(items, range(most), strict=False))


def _adam(model: nn.Module) -> Callable[[], object]:
    """A step of AdamW; it is made when it is first wanted, because a model may have no weights."""
    made: list[AdamW] = []

    def step() -> None:
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        if not weights:
            raise ConfigError("the model has no weights that a step could change\nfix: leave --step out")
        if not made:
            made.append(AdamW(weights, lr=_RATE))
        made[0].step()

    return step
