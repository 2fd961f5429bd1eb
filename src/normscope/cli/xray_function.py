"""A function of the user's own that makes a model and a batch: found by its name, called, and what it gave checked."""

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from normscope.errors import ConfigError

_WANTED = "return model, batch  (or model, batch, loss: a function of the output)"
_NAMES = 12
"""How many functions are named, of those that could have been meant."""

_FRAMES = 3
"""How many lines of the user's own code are shown of an error."""


def is_function(target: str) -> bool:
    """Whether the target looks like package.module:function or file.py:function."""
    place, colon, name = target.rpartition(":")
    return bool(colon and place) and name.isidentifier() and not Path(target).exists()


def call_function(target: str) -> tuple[nn.Module, Any, Callable[[Any], Tensor] | None]:
    """The model, the batch and, if there is one, the loss that the function returns."""
    place, _, name = target.rpartition(":")
    with user_code_errors(f"{place} cannot be imported: it"):
        module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{place} has no function {name!r}\nfix: {_instead(name, list_functions(module))}")
    with user_code_errors(target):
        given = function()
    return _checked(target, given)


def list_functions(module: ModuleType) -> list[str]:
    """The names of the functions that a module has of its own; a class makes a model, but no batch."""
    own = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    mine = {name: value for name, value in own.items() if getattr(value, "__module__", "") == module.__name__}
    return [name for name, value in mine.items() if not isinstance(value, type)]


def _instead(name: str, there: list[str]) -> str:
    close = difflib.get_close_matches(name, there, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f", and {len(there) - _NAMES} more" if len(there) > _NAMES else ""
    some = ", ".join(there[:_NAMES])
    return f"these are there: {some}{more}" if there else "write one, which returns a model and a batch"


def check_call(target: str, model: nn.Module, batch: Any) -> None:
    """Refuse a batch that the model's forward has no room for: most often it holds the labels too."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # one that is not written in Python
        return
    if isinstance(batch, Mapping):
        positional, named = (), dict(batch)
    else:
        positional, named = tuple(batch) if isinstance(batch, tuple | list) else (batch,), {}
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        got = "a tensor" if isinstance(batch, Tensor) else f"a {type(batch).__name__} of {len(batch)}"
        fix = "return model, inputs, lambda output: F.cross_entropy(output, labels)  (the loss has the labels)"
        if len(positional) < 2:
            fix = "a tensor for model(batch), a tuple for model(*batch), or a dictionary for model(**batch)"
        raise ConfigError(
            f"the batch of {target} is {got}, and {type(model).__name__}.forward{signature} {_misfit(error)}\n"
            f"fix: {fix}"
        ) from None


def _misfit(error: TypeError) -> str:
    """What Python says of arguments that do not fit, as part of a sentence: it begins with "missing" or with "got"."""
    words = str(error)
    return f"is {words}" if words.startswith("missing") else words.replace("too many", "gets too many")


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{name!r} is not the name of a module\nfix: write package.module:function")
    here = str(Path.cwd())
    if here not in sys.path:  # a command that is installed does not look there
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # something that it imports
        raise ConfigError(
            f"there is no module {name!r} to import\nfix: write package.module:function, or path/to/file.py:function"
        ) from None


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}\nfix: write path/to/file.py:function")
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # for what lies beside it
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _checked(target: str, given: Any) -> tuple[nn.Module, Any, Callable[[Any], Tensor] | None]:
    if isinstance(given, nn.Module):
        raise ConfigError(f"{target} returned a model alone, and an x-ray needs a batch to give it\nfix: {_WANTED}")
    if not isinstance(given, tuple | list) or len(given) not in (2, 3):
        many = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise ConfigError(f"{target} returned {type(given).__name__}{many}, not a model and a batch\nfix: {_WANTED}")
    model, batch, loss = (*given, None)[:3]
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{target} returned {type(model).__name__} where its model should be\nfix: {_WANTED}")
    if not isinstance(batch, Tensor | tuple | list | Mapping):
        raise ConfigError(
            f"{target} returned {type(batch).__name__} where its batch should be\n"
            f"fix: a tensor for model(batch), a tuple for model(*batch), or a dictionary for model(**batch)"
        )
    if loss is not None and not callable(loss):
        raise ConfigError(f"{target} returned {type(loss).__name__} where its loss should be\nfix: {_WANTED}")
    return model, batch, loss


@contextmanager
def user_code_errors(what: str) -> Iterator[None]:
    """Turn an error of the user's own code into one line that says it, and the lines of that code where it was."""
    try:
        yield
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also what ends the program, as a script without a main guard does
        lines = [f"{what} raised {type(error).__name__}: {str(error) or 'it does not say why'}"]
        for frame in _own(traceback.extract_tb(error.__traceback__)):
            lines += [f"  {frame.filename}, line {frame.lineno}, in {frame.name}", f"    {frame.line}"]
        raise ConfigError("\n".join(lines)) from error


def _own(trace: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """The last lines that are neither ours nor Python's nor an installed library's."""
    ours = str(Path(__file__).parents[1])
    libraries = ("site-packages", "importlib")
    theirs = [
        frame
        for frame in trace
        if not frame.filename.startswith((ours, "<")) and not any(name in frame.filename for name in libraries)
    ]
    return theirs[-_FRAMES:]
