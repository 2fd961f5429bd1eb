"""The dotted names of modules: what is inside what, and which parts of different blocks correspond."""

import itertools
import re
from collections.abc import Collection, Iterator

_FOLLOWERS = re.compile(
    r"(^|[._])(target|teacher|ema|momentum|average|avg|shadow|slow|old|prev|previous|ref|reference|frozen|key_encoder|"
    r"encoder_k|offline)(_?(net|network|model|encoder|projector|critic|actor|q|policy|critics?\d?))?\d?($|[._])"
)
"""Names of networks that others learn from, and that are no part of the learning themselves."""


def outer_names(name: str) -> Iterator[str]:
    """The names of the modules that contain this one, innermost first.

    >>> list(outer_names("blocks.3.mlp"))
    ['blocks.3', 'blocks', '']
    """
    while name:
        name = parent_name(name)
        yield name


def parent_name(name: str) -> str:
    """Name of the parent module.

    >>> parent_name("blocks.3.mlp"), parent_name("blocks")
    ('blocks.3', '')
    """
    return name.rpartition(".")[0]


def is_inside(name: str, outer: str) -> bool:
    """Whether a module is `outer` or inside it."""
    return not outer or name == outer or name.startswith(f"{outer}.")


def outermost_outside(names: Collection[str], name: str) -> str:
    """The outermost module around this one, or itself, that is not among the names.

    >>> outermost_outside({"", "blocks"}, "blocks.3.mlp.fc1")
    'blocks.3'
    """
    while parent_name(name) and parent_name(name) not in names:
        name = parent_name(name)
    return name


def common_parent(names: list[str]) -> str:
    """The innermost module that contains all of these, or the only one of them.

    >>> common_parent(["layers.3.fc1", "layers.3.fc2"]), common_parent(["layers.3.fc1"]), common_parent(["a", "b"])
    ('layers.3', 'layers.3.fc1', '')
    """
    parts = [name.split(".") for name in names]
    shared = [column[0] for column in itertools.takewhile(lambda c: len(set(c)) == 1, zip(*parts, strict=False))]
    return ".".join(shared)


def name_pattern(name: str) -> str:
    """Replace the indices in a module name by *: the result is the same for the same part of every block.

    >>> name_pattern("blocks.3.mlp.fc1"), name_pattern("blocks.3.mlp.relu()#2")
    ('blocks.*.mlp.fc1', 'blocks.*.mlp.relu()#2')
    """
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def join_names(module: str, name: str) -> str:
    """Full name of a parameter or submodule of a module.

    >>> join_names("blocks.3", "weight"), join_names("", "weight")
    ('blocks.3.weight', 'weight')
    """
    return f"{module}.{name}" if module else name


def module_ref(name: str) -> str:
    """A module's name as it appears in messages.

    >>> module_ref("blocks.3"), module_ref("")
    ('`blocks.3`', 'the model')
    """
    return f"`{name}`" if name else "the model"


def is_follower(name: str) -> bool:
    """Whether a module has the name of a network that others learn from, such as `target_net`.

    >>> is_follower("critic_target"), is_follower("teacher.layers.0"), is_follower("refine"), is_follower("encoder")
    (True, True, False, False)
    """
    return bool(_FOLLOWERS.search(name.lower()))


def follows_by_name(name: str, other: str) -> bool:
    """Whether exactly one of two modules has such a name."""
    return is_follower(name) != is_follower(other)
