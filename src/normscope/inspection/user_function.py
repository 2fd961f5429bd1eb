"""Import and call a user function that returns a model and a batch, and check the result."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from normscope.checks import did_you_mean
from normscope.errors import ConfigError

_EXPECTED = "return model, batch  (or model, batch, loss: a function of the output)"
_BATCH = "return a tensor for model(batch), a tuple for model(*batch), or a dict for model(**batch)"
_MAX_LISTED = 12
"""How many functions to list in an error."""

_MAX_FRAMES = 3
"""How many frames of user code to show."""


def is_function(target: str) -> bool:
    """Whether the target has the form package.module:function or file.py:function."""
    place, colon, name = target.rpartition(":")
    return bool(colon and place) and name.isidentifier() and not Path(target).exists()


def call_function(target: str) -> tuple[nn.Module, Any, Callable[[Any], Tensor] | None]:
    """Call the function; return model, batch and loss function (None if it returns none)."""
    place, _, name = target.rpartition(":")
    is_file = place.endswith(".py")
    with modules_beside(Path(place)) if is_file else nullcontext():
        with user_code_errors(f"importing {place}"):
            module = _import_file(place) if is_file else _import_module(place)
        function = getattr(module, name, None)
        if not callable(function):
            raise ConfigError(f"{place} has no function {name!r}\nfix: {_suggestion(name, _functions_of(module))}")
        with user_code_errors(target):
            given = function()
    return _checked(target, given)


def _functions_of(module: ModuleType) -> list[str]:
    """Names of the functions defined in a module. Classes are skipped: they make a model, but no batch."""
    own = {name: value for name, value in vars(module).items() if callable(value) and not isinstance(value, type)}
    mine = [name for name, value in own.items() if getattr(value, "__module__", "") == module.__name__]
    return [name for name in mine if not name.startswith("_")]


def _suggestion(name: str, available: list[str]) -> str:
    if not available:
        return "define one that returns a model and a batch"
    more = f", and {len(available) - _MAX_LISTED} more" if len(available) > _MAX_LISTED else ""
    return did_you_mean(name, available, f"use one of: {', '.join(available[:_MAX_LISTED])}{more}")


def check_call(target: str, model: nn.Module, batch: Any) -> None:
    """Refuse a batch that does not match the signature of forward: often it also contains the labels."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # not a Python function
        return
    if isinstance(batch, Mapping):
        positional, named = (), dict(batch)
    else:
        positional, named = tuple(batch) if isinstance(batch, tuple | list) else (batch,), {}
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        got = "a tensor" if isinstance(batch, Tensor) else f"a {type(batch).__name__} of {len(batch)}"
        fix = "return model, inputs, lambda output: F.cross_entropy(output, labels)  (the loss uses the labels)"
        if len(positional) < 2:
            fix = _BATCH
        wanted = f"{type(model).__name__}.forward{signature}"
        raise ConfigError(f"the batch of {target} is {got}, and {wanted} {_misfit(error)}\nfix: {fix}") from None


def _misfit(error: TypeError) -> str:
    """Rephrase Python's TypeError about arguments as part of a sentence."""
    message = str(error)
    return f"is {message}" if message.startswith("missing") else message.replace("too many", "gets too many")


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"invalid module name {name!r}\nfix: use package.module:function")
    here = str(Path.cwd())
    if here not in sys.path:  # an installed command does not search the current folder
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a module that it imports
        fix = "use package.module:function or path/to/file.py:function"
        raise ConfigError(f"no module named {name!r}\nfix: {fix}") from None


@contextmanager
def modules_beside(path: Path) -> Iterator[None]:
    """Let a file import modules beside it, then unload them: another file may have modules with the same names."""
    folder, before = path.resolve().parent, dict(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if before.get(name) is not module and file and Path(file).is_relative_to(folder):
                del sys.modules[name]
                if name in before:
                    sys.modules[name] = before[name]


def _import_file(place: str) -> ModuleType:
    path = Path(place)
    if not path.is_file():
        raise ConfigError(f"no such file: {path}\nfix: use path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _checked(target: str, given: Any) -> tuple[nn.Module, Any, Callable[[Any], Tensor] | None]:
    if isinstance(given, nn.Module):
        raise ConfigError(f"{target} returned a model without a batch\nfix: {_EXPECTED}")
    if not isinstance(given, tuple | list) or len(given) not in (2, 3):
        many = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise ConfigError(f"{target} returned {type(given).__name__}{many}, not a model and a batch\nfix: {_EXPECTED}")
    model, batch, loss = (*given, None)[:3]
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{target} must return a model first, but got {type(model).__name__}\nfix: {_EXPECTED}")
    if not isinstance(batch, Tensor | tuple | list | Mapping):
        raise ConfigError(f"{target} must return a batch second, but got {type(batch).__name__}\nfix: {_BATCH}")
    if loss is not None and not callable(loss):
        raise ConfigError(f"{target} must return a loss third, but got {type(loss).__name__}\nfix: {_EXPECTED}")
    return model, batch, loss


@contextmanager
def user_code_errors(what: str) -> Iterator[None]:
    """Turn an error in user code into a ConfigError with the message and the frames of user code."""
    try:
        yield
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also SystemExit, from a script without a main guard
        lines = [f"{what} raised {type(error).__name__}: {str(error) or 'no message'}"]
        for frame in _user_frames(traceback.extract_tb(error.__traceback__)):
            lines += [f"  {frame.filename}, line {frame.lineno}, in {frame.name}", f"    {frame.line}"]
        raise ConfigError("\n".join(lines)) from error


def _user_frames(trace: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """The innermost frames that are not in normscope, Python or an installed library."""
    ours = str(Path(__file__).parents[1])
    libraries = ("site-packages", "importlib")
    theirs = [frame for frame in trace if not frame.filename.startswith((ours, "<"))]
    return [frame for frame in theirs if not any(name in frame.filename for name in libraries)][-_MAX_FRAMES:]
