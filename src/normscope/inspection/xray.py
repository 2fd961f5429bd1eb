"""X-ray a model by name: a run, a preset, a Hugging Face folder, a function, or a saved x-ray."""

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from normscope import checks
from normscope.diagnostics.diff.diff import compare
from normscope.diagnostics.diff.differences import RecordDiff
from normscope.diagnostics.findings import Finding, find
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.record_json import load_record
from normscope.diagnostics.report.page import xray_page
from normscope.diagnostics.report.terminal import render_text
from normscope.errors import ConfigError, FileError, NormscopeError
from normscope.inspection import xray_targets
from normscope.inspection.arguments import preserve_rng
from normscope.inspection.user_function import is_function, user_code_errors
from normscope.inspection.xray_config import XrayConfig
from normscope.models.presets import PRESETS
from normscope.runs.read_source import Source, find_source
from normscope.runtime.devices import check_compile


@dataclass(frozen=True)
class XrayResult:
    """One x-ray, or a series of saved ones, and the findings of the last.

    Args:
        records: The x-rays, the last one being shown.
        findings: What is wrong, most severe first.
    """

    records: tuple[XrayRecord, ...] = field(repr=False)
    findings: Sequence[Finding]

    def __str__(self) -> str:
        """The findings and a summary, as `normscope xray` prints them."""
        return render_text(self.record, self.findings, tree=False).rstrip("\n")

    @property
    def record(self) -> XrayRecord:
        return self.records[-1]

    @property
    def html(self) -> str:
        """The report as an HTML page."""
        return xray_page(self.records, self.findings)


def xray_target(target: str | Path, **settings: Any) -> XrayResult:
    """X-ray a model by name, like `normscope xray TARGET`; see `xray` for a model in memory.

    Args:
        target: A run folder, a preset, a Hugging Face folder, package.module:function, path/to/file.py:function, a
            saved x-ray, or a folder of them.
        settings: Fields of `XrayConfig`: checkpoint, depth, model, batches, forward_only, step, seed, dtype, ...
    """
    config = _config(settings)
    records = _records(target, config, _given_options(config))
    return XrayResult(tuple(records), find(records[-1]))


def xray_diff(
    one: str | Path, other: str | Path = "", *, tolerance: float | None = None, **settings: Any
) -> RecordDiff:
    """Compare two x-rays module by module.

    Args:
        one: A target of `xray_target`.
        other: The target to compare with; by default the same one, run with dtype, compile or cached.
        tolerance: Relative tolerance; None for half of the digits of the dtype.
        settings: Fields of `XrayConfig`; dtype, compile and cached apply to the second side.
    """
    config = _config(settings)
    if not other and not config.execution:
        fix = "add a second target, or --dtype bfloat16, --compile or --cached"
        raise ConfigError(f"nothing to compare {one} with\nfix: {fix}")
    config = dataclasses.replace(config, forward_only=config.forward_only or config.cached)  # for both sides
    plain = dataclasses.replace(config, dtype="float32", compile=False, cached=False)
    before = _records(one, plain, [])[-1]
    execution = [name for name in _given_options(config) if name in ("--dtype", "--compile", "--cached")]
    after = _records(other or one, config, execution)[-1]
    return compare(before, after, tolerance=tolerance)


def _config(settings: Mapping[str, Any]) -> XrayConfig:
    checks.check_setting_names("an x-ray", settings, XrayConfig)
    return XrayConfig(**settings)


def _given_options(config: XrayConfig) -> list[str]:
    """The options that differ from their defaults, as on the command line; those of a preset first."""
    sizes = [name if name in ("width", "heads", "context") else "model" for name in config.model]
    fields = [one for one in dataclasses.fields(config) if one.name != "model"]
    names = [*sizes, *(one.name for one in fields if getattr(config, one.name) != one.default)]
    return [f"--{name.replace('_', '-')}" for name in names]


def _records(target: str | Path, config: XrayConfig, options: Sequence[str]) -> list[XrayRecord]:
    """Load saved x-rays, or take one now. Saved ones accept no options."""
    saved = _saved_xrays(checks.as_path(target, "a model"))
    if not saved:
        with preserve_rng():
            return [take_xray(_load_target(str(target), config), config)]
    if options:
        raise ConfigError(f"{options[0]} has no effect on the saved x-ray {target}\nfix: remove it")
    return [load_record(one) for one in saved]


def is_saved_xray(target: str) -> bool:
    """Whether this is a saved x-ray, or a folder of them."""
    return bool(_saved_xrays(Path(target)))


def _saved_xrays(path: Path) -> list[Path]:
    return sorted(path.glob("step-*.json")) if path.is_dir() else [path] if path.suffix == ".json" else []


def _load_target(target: str, config: XrayConfig) -> xray_targets.XrayTarget:
    if target in PRESETS and not Path(target).is_dir():
        return xray_targets.from_preset(target, config.depth, config.model, config.seed)
    of_preset = XrayConfig(depth=config.depth, model=config.model)
    if options := _given_options(of_preset):
        raise ConfigError(f"{options[0]} applies only to presets, not to {target}\nfix: remove it")
    if is_function(target):
        return xray_targets.from_function(target, config.seed)
    source = _find_source(target)
    if source.kind == "run":
        return xray_targets.from_run(source.path, config.checkpoint, config.seed)
    return xray_targets.from_checkpoint(source, config.seed)


def _find_source(target: str) -> Source:
    try:
        return find_source(target)
    except FileError as error:
        problem, _, fix = str(error).rpartition("\nfix: ")
        if target.endswith(".py"):
            problem = f"{target} is a script" if Path(target).is_file() else problem
            function = f"{target}:FUNCTION, which returns a model and a batch"
            fix = f"normscope xray --script {target} for a training script, or {function}"
        elif fix.startswith("use "):
            fix += ", or a function that returns a model and a batch: path/to/file.py:function"
        raise FileError(f"{problem}\nfix: {fix}") from None


def take_xray(target: xray_targets.XrayTarget, config: XrayConfig) -> XrayRecord:
    """Take an x-ray. Errors of the model name the module in which they happened."""
    if config.cached and target.cached is None:
        raise ConfigError(f"--cached needs a GPT of normscope, but got {target.label}\nfix: remove --cached")
    model = target.model
    if config.compile:
        check_compile(True, torch.device("cpu"))
        model.forward = torch.compile(model.forward)
    torch.manual_seed(config.seed)
    label = f"{target.label}, {config.execution}" if config.execution else target.label
    xray = Xray(model, label=label, submodules=not config.compile)
    started = False
    try:
        with _autocast(config.dtype), xray:
            started = True
            _run(target, config)
    except NormscopeError:
        raise
    except Exception as error:
        if not started:  # there is no record yet
            raise
        running = [module for module in xray.record.ran if module.output is None]
        inner = f"its module {running[-1].name!r}" if running and running[-1].name else "the model"
        where = inner if running else "the loss or the backward pass"
        with user_code_errors(f"{target.label}: {where}"):
            raise error
    finally:
        model.__dict__.pop("forward", None)
        model.zero_grad(set_to_none=True)
    notices = (*xray.record.notices, *target.notices)
    return dataclasses.replace(xray.record, notices=notices, steps_before=target.steps)


def _run(target: xray_targets.XrayTarget, config: XrayConfig) -> None:
    if config.cached:
        assert target.cached is not None
        target.model.eval()
        with torch.no_grad():
            target.cached()
        return
    for number in range(config.batches):
        if config.forward_only:
            with torch.no_grad():
                target.loss(number)
            continue
        target.model.zero_grad(set_to_none=True)
        loss = target.loss(number)
        if not loss.requires_grad:
            raise ConfigError(f"no parameter of {target.label} requires a gradient\nfix: --forward-only")
        loss.backward()
        if config.step:
            target.step()


@contextmanager
def _autocast(dtype: str) -> Iterator[None]:
    """Autocast to this dtype. bfloat16 runs without oneDNN, which crashes on some machines and is not needed here."""
    if dtype == "float32":
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
            yield
