"""Read pickles without executing anything.

A pickle is a program for a stack machine, and its instructions may import and call any function. The interpreter here
has no access to Python's functions: an instruction that names one gets a builder from a table of harmless ones, and a
name that isn't in the table is refused. The number of instructions is limited, and so is the structure of the result:
a few bytes can describe a list of lists with more elements than any memory holds, or keys that all collide.
"""

import pickletools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sized
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

from normscope.checks import as_path
from normscope.errors import FileError
from normscope.interop.files.pickle_builders import MAX_KEY, PLAIN, checked_keys
from normscope.storage.files import open_regular, read_limited
from normscope.storage.json_files import MAX_NESTING, MIB, ContentError, reraise_as

MAX_BYTES = 32 * MIB
"""Size limit of a pickle; the data of tensors is not in it. A tokenizer with 200k tokens has 3 MiB."""
MAX_INSTRUCTIONS = 2**20
"""Limit of instructions; a tokenizer with 200k tokens has 600k."""
MAX_CONTAINERS = 2**17
"""Limit of instructions that make a container, each of which costs ten times as much as a number. torch.save writes
five tuples per tensor, and checkpoints have at most some thousands of tensors with the optimizer's state."""
MAX_VALUES = 2**22
"""Limit of values in the result, where a container that is in several places counts each time."""
_MAKES_CONTAINER = (
    *("EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "EMPTY_SET", "LIST", "DICT", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("FROZENSET", "INST", "OBJ", "REDUCE", "NEWOBJ", "NEWOBJ_EX"),
)
_WALKED = (dict, list, tuple)
_COST_OF_VALUE = 32
"""How many bytes of a text are as much work as a value in a container."""
FIX = "if you trust the file, load it with the tool that wrote it, and save plain values or safetensors"


@runtime_checkable
class HasState(Protocol):
    """A value whose state follows in a separate instruction."""

    def set_state(self, state: Any) -> None: ...


class _Builder(NamedTuple):
    """A function of the table, which only the interpreter calls."""

    name: str
    build: Callable[..., Any]


def read_pickle(path: str | Path, allowed: Mapping[str, object] = PLAIN) -> Any:
    """Read a pickle of containers, strings and numbers.

    Args:
        path: the file.
        allowed: for each name that the pickle may use, such as "collections.OrderedDict", a value, or a function that
            builds one from the arguments in the pickle.

    >>> import pickle, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65, "stoi": {"a": 0}}))
    ...     _ = Path(folder, "evil.pkl").write_bytes(pickle.dumps(eval))
    ...     print(read_pickle(f"{folder}/meta.pkl"))
    ...     try:
    ...         read_pickle(f"{folder}/evil.pkl")
    ...     except FileError as error:
    ...         print(str(error).partition(" ")[2].partition(";")[0])
    {'vocab_size': 65, 'stoi': {'a': 0}}
    asks for builtins.eval
    """
    path = as_path(path, "a pickle")
    with reraise_as(FileError, FIX), open_regular(path) as file:
        data = read_limited(file, path, MAX_BYTES)
    try:
        return PickleReader(allowed).read(data)
    except ContentError as problem:
        raise FileError(f"{path} {problem}\nfix: {FIX}") from None


class PickleReader:
    """Builds the value that a pickle describes; raises a ContentError for anything but the allowed names.

    Args:
        allowed: see `read_pickle`.
        load_persistent: returns the object with this id outside of the pickle; None refuses such ids.
    """

    def __init__(self, allowed: Mapping[str, object], load_persistent: Callable[[Any], Any] | None = None) -> None:
        self._allowed, self._load_persistent = allowed, load_persistent
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []  # the stacks below each mark
        self._memo: dict[int, Any] = {}
        self._actions = self._action_table()
        self._budget = MAX_BYTES

    def read(self, data: bytes) -> Any:
        try:
            with warnings.catch_warnings(action="ignore"):  # about escapes in the strings of protocol 0
                value = self._run(data)
        except (IndexError, KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ContentError(f"is not a valid pickle: {error!r:.200}") from None
        _check_structure(value)
        return value

    def _run(self, data: bytes) -> Any:
        containers = 0
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count == MAX_INSTRUCTIONS:
                raise ContentError(f"has more than {MAX_INSTRUCTIONS:,} instructions")
            if opcode.name == "STOP":
                break
            containers += opcode.name in _MAKES_CONTAINER
            if containers > MAX_CONTAINERS:
                raise ContentError(f"makes more than {MAX_CONTAINERS:,} containers")
            action = self._actions.get(opcode.name)
            if action is None:
                raise ContentError(f"uses the unsupported instruction {opcode.name}")
            action(argument)
        return self._stack.pop()

    def _action_table(self) -> dict[str, Callable[[Any], None]]:
        """What each instruction does with its argument."""
        literals = (
            "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING SHORT_BINSTRING BINSTRING UNICODE "
            "SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8"
        )
        push = self._push
        return {
            **dict.fromkeys(literals.split(), push),
            **dict.fromkeys(("PROTO", "FRAME"), lambda _: None),
            "LONG1": self._push_integer,
            "LONG4": self._push_integer,
            "NONE": lambda _: push(None),
            "NEWTRUE": lambda _: push(True),
            "NEWFALSE": lambda _: push(False),
            "EMPTY_LIST": lambda _: push([]),
            "EMPTY_DICT": lambda _: push({}),
            "EMPTY_TUPLE": lambda _: push(()),
            "EMPTY_SET": lambda _: push(set()),
            "LIST": lambda _: push(self._pop_mark()),
            "DICT": lambda _: self._set_items(self._pop_mark(), push({})),
            "TUPLE": lambda _: push(tuple(self._pop_mark())),
            "TUPLE1": lambda _: push(self._pop_many(1)),
            "TUPLE2": lambda _: push(self._pop_many(2)),
            "TUPLE3": lambda _: push(self._pop_many(3)),
            "FROZENSET": lambda _: push(frozenset(checked_keys(self._pop_mark()))),
            "APPEND": lambda _: self._extend(self._pop_many(1)),
            "APPENDS": lambda _: self._extend(self._pop_mark()),
            "SETITEM": lambda _: self._set_items(self._pop_many(2), self._stack[-1]),
            "SETITEMS": lambda _: self._set_items(self._pop_mark(), self._stack[-1]),
            "ADDITEMS": lambda _: self._add_items(self._pop_mark()),
            "MARK": self._mark,
            "POP": lambda _: self._pop(),
            "POP_MARK": lambda _: self._pop_mark(),
            "DUP": lambda _: push(self._stack[-1]),
            **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda index: push(self._memo[index])),
            **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), self._memoize),
            "MEMOIZE": lambda _: self._memoize(len(self._memo)),
            "GLOBAL": lambda names: push(self._find(*names.split(" ", 1))),
            "STACK_GLOBAL": lambda _: push(self._find(*self._pop_many(2))),
            "INST": lambda names: push(self._call(self._find(*names.split(" ", 1)), tuple(self._pop_mark()))),
            "OBJ": lambda _: self._call_first(self._pop_mark()),
            "REDUCE": lambda _: push(self._call(*self._pop_many(2))),
            "NEWOBJ": lambda _: push(self._call(*self._pop_many(2))),
            "NEWOBJ_EX": lambda _: self._call_with_names(*self._pop_many(3)),
            "BUILD": lambda _: self._set_state(self._stack.pop()),
            "PERSID": lambda name: push(self._persistent(name)),
            "BINPERSID": lambda _: push(self._persistent(self._stack.pop())),
            **dict.fromkeys(("EXT1", "EXT2", "EXT4"), _refuse_extension),
        }

    def _push(self, value: Any) -> Any:
        self._stack.append(value)
        return value

    def _push_integer(self, value: int) -> None:
        if value.bit_length() > 128:
            raise ContentError(f"has an integer of {value.bit_length():,} bits")
        self._stack.append(value)

    def _pop(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._pop_mark()

    def _pop_many(self, count: int) -> tuple[Any, ...]:
        if len(self._stack) < count:
            raise IndexError("the stack is empty")
        values = tuple(self._stack[-count:])
        del self._stack[-count:]
        return values

    def _mark(self, _: Any) -> None:
        self._outer.append(self._stack)
        self._stack = []

    def _pop_mark(self) -> list[Any]:
        values, self._stack = self._stack, self._outer.pop()
        return values

    def _memoize(self, index: int) -> None:
        if index > MAX_KEY:
            raise ContentError(f"remembers a value as number {index:,}")
        self._memo[index] = self._stack[-1]

    def _extend(self, values: Iterable[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise ContentError(f"appends to {_kind(target)}")
        target.extend(values)

    def _set_items(self, values: Iterable[Any], target: Any) -> None:
        if type(target) is not dict:
            raise ContentError(f"sets an item of {_kind(target)}")
        values = tuple(values)
        target.update(zip(checked_keys(values[::2]), values[1::2], strict=True))

    def _add_items(self, values: Iterable[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not set:
            raise ContentError(f"adds an item to {_kind(target)}")
        target.update(checked_keys(values))

    def _find(self, module: Any, name: Any) -> Any:
        if module == "__builtin__":  # in Python 2, and up to protocol 2
            module = "builtins"
        full = f"{module}.{name}" if type(module) is type(name) is str else f"{module!r:.40}.{name!r:.40}"
        if full not in self._allowed:
            _refuse(full)
        found = self._allowed[full]
        return _Builder(full, found) if callable(found) else found

    def _call(self, function: Any, arguments: Any) -> Any:
        if type(function) is not _Builder or type(arguments) is not tuple:
            raise ContentError(f"calls {_kind(function)} with {_kind(arguments)}")
        # A value in the memo can be an argument again and again: a few bytes could ask for any amount of work.
        for one in arguments:
            if isinstance(one, Sized):
                self._budget -= len(one) * (1 if isinstance(one, str | bytes) else _COST_OF_VALUE)
        if self._budget < 0:
            raise ContentError(f"calls {function.name} with too many values")
        try:
            return function.build(*arguments)
        except (TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
            raise ContentError(f"calls {function.name} with unsupported arguments: {error!s:.200}") from None

    def _call_first(self, values: list[Any]) -> None:
        self._push(self._call(values[0], tuple(values[1:])))

    def _call_with_names(self, function: Any, arguments: Any, named: Any) -> None:
        if named != {}:
            raise ContentError(f"calls {_kind(function)} with arguments by name")
        self._push(self._call(function, arguments))

    def _set_state(self, state: Any) -> None:
        target = self._stack[-1]
        if isinstance(target, HasState):
            target.set_state(state)
        elif not (type(target) is dict and type(state) is dict and state.keys() == {"_metadata"}):
            # The exception is a module's state_dict, whose versions of modules nobody needs here.
            raise ContentError(f"sets attributes of {_kind(target)}")

    def _persistent(self, name: Any) -> Any:
        if self._load_persistent is None:
            raise ContentError("asks for an object outside of the pickle")
        return self._load_persistent(name)


def _refuse(name: str) -> NoReturn:
    shown = name if name.isascii() and name.isprintable() and len(name) <= 80 else f"{name!a:.80}"
    raise ContentError(f"asks for {shown}; only tensors, containers, strings and numbers are read, nothing is executed")


def _refuse_extension(code: int) -> NoReturn:
    _refuse(f"the function with the extension code {code}")


def _kind(value: Any) -> str:
    return value.name if type(value) is _Builder else f"a {type(value).__name__}"


def _check_structure(root: Any) -> None:
    """Check that the value can be walked through: no cycles, limited nesting and number of values."""
    measured: dict[int, tuple[int, int]] = {}  # nesting and number of values
    entered: set[int] = set()
    pending = [root]
    while pending:
        value = pending[-1]
        if id(value) in measured:  # it is in several places
            pending.pop()
            continue
        children = value.values() if type(value) is dict else value if isinstance(value, list | tuple) else ()
        inner = [child for child in children if isinstance(child, _WALKED)]
        unmeasured = [child for child in inner if id(child) not in measured]
        if unmeasured:
            if id(value) in entered:
                raise ContentError("has a container that contains itself")
            entered.add(id(value))
            pending += unmeasured
            continue
        pending.pop()
        if type(value) is _Builder:
            raise ContentError(f"has the function {value.name} as a value")
        nesting = 1 + max((measured[id(child)][0] for child in inner), default=0)
        size = 1 + len(children) + sum(measured[id(child)][1] for child in inner)
        if nesting > MAX_NESTING:
            raise ContentError(f"is nested more than {MAX_NESTING} levels deep")
        if size > MAX_VALUES:
            raise ContentError(f"describes more than {MAX_VALUES:,} values")
        measured[id(value)] = nesting, size
