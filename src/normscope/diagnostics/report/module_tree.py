"""The module tree of a record, with identical blocks folded into one."""

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from normscope.diagnostics.record import ModuleRecord, XrayRecord
from normscope.render.formatting import one_line

MIN_TO_FOLD = 3
"""Number of consecutive blocks with the same structure to fold."""


@dataclass(eq=False)
class ModuleNode:
    """A module and its submodules.

    Args:
        module: its record.
        label: its name within the parent.
        parameters: number of parameter elements, including submodules, each counted once.
        children: submodules in execution order; those that never ran come last.
        folded: siblings with the same structure that are folded into this one.
        own_flops: FLOPs outside its submodules: a tied head, or the matrix products of attention.
    """

    module: ModuleRecord
    label: str
    parameters: int = 0
    children: list["ModuleNode"] = field(default_factory=list)
    folded: list["ModuleNode"] = field(default_factory=list)
    own_flops: int = 0

    @property
    def kind(self) -> str:
        """Class of the module, unless its label says it already."""
        kind = one_line(self.module.kind)
        return "" if self.module.is_function or kind == one_line(self.label) else kind

    @property
    def is_unused(self) -> bool:
        """Whether nothing here ran, although something could have.

        Aliases do not count as unused, nor do modules whose weights were used without calling them.
        """
        if self.first < math.inf or self.module.alias_of is not None:
            return False
        own = [parameter for inner in self.walk() for parameter in inner.module.parameters]
        is_empty_list = not self.children and not own and self.module.kind.endswith(("List", "Dict"))
        return not is_empty_list and not any(parameter.gradient is not None for parameter in own)

    def walk(self) -> Iterator["ModuleNode"]:
        """This node and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def holds(self, names: Collection[str]) -> bool:
        """Whether this module or one inside it has one of these names."""
        return any(node.module.name in names for node in self.walk())

    @property
    def first(self) -> float:
        """Execution order of the first module here that ran; inf if none did. Containers do not run themselves."""
        return min((node.module.order for node in self.walk() if node.module.order is not None), default=math.inf)


def build_tree(record: XrayRecord) -> list[ModuleNode]:
    """Build the tree; returns its roots: the model, or nothing for an empty record.

    >>> modules = ModuleRecord("", "Net"), ModuleRecord("a", "Linear"), ModuleRecord("a.b", "ReLU")
    >>> [[node.label for node in root.walk()] for root in build_tree(XrayRecord("Net", modules, 1, 0))]
    [['Net', 'a', 'b']]
    """
    nodes: dict[str, ModuleNode] = {}
    roots = []
    for module in record.modules:
        parent, _, label = module.name.rpartition(".")
        while parent and parent not in nodes:
            parent = parent.rpartition(".")[0]
        node = nodes[module.name] = ModuleNode(module, label or record.model)
        if parent in nodes and module.name:
            node.label = module.name.removeprefix(f"{parent}.") if parent else module.name
            nodes[parent].children.append(node)
        else:
            roots.append(node)
    for node in reversed(nodes.values()):  # children come after their parents, so they are complete
        own = node.module.parameter_count if node.module.alias_of is None else 0
        node.parameters = own + sum(child.parameters for child in node.children)
        node.children.sort(key=lambda child: child.first)
        node.own_flops = _own_flops(node)
    return roots


def fold(node: ModuleNode, keep: Collection[str]) -> ModuleNode:
    """Fold runs of siblings with the same structure into the first of each.

    Args:
        node: root of the tree.
        keep: names of modules that stay visible, with their ancestors.
    """
    children: list[ModuleNode] = []
    for _, same in itertools.groupby(node.children, key=_structure):
        run = list(same)
        is_long = len(run) >= MIN_TO_FOLD
        shown = [child for child in run if not is_long or child is run[0] or child.holds(keep)]
        folded = [fold(_path(child, keep) if is_long and child is not run[0] else child, keep) for child in shown]
        folded[0].folded = [child for child in run if child not in shown]
        children += folded
    return replace(node, children=children)


def _path(node: ModuleNode, names: Collection[str]) -> ModuleNode:
    """Of a folded block, only the path to the modules with these names."""
    return replace(node, children=[_path(child, names) for child in node.children if child.holds(names)], folded=[])


def unused_modules(record: XrayRecord) -> list[ModuleRecord]:
    """The outermost modules of which nothing ran, without aliases of other modules."""
    return [module for root in build_tree(record) for module in _unused(root)]


def _own_flops(node: ModuleNode) -> int:
    """FLOPs that its children do not account for; 0 if a child is shared, since its FLOPs are counted elsewhere."""
    inner = [child for child in node.walk() if child is not node]
    if not node.module.flops or not inner or any(child.module.alias_of is not None for child in inner):
        return 0
    return max(0, node.module.flops - sum(_flops(child) for child in node.children))


def _flops(node: ModuleNode) -> int:
    """FLOPs of a module; for a container, which does not run, those of its children."""
    return node.module.flops or sum(_flops(child) for child in node.children)


def _unused(node: ModuleNode) -> list[ModuleRecord]:
    return [node.module] if node.is_unused else [module for child in node.children for module in _unused(child)]


def _structure(node: ModuleNode, is_inside: bool = False) -> tuple[object, ...]:
    """A key that is equal for blocks with the same structure; a shared module counts as having run.

    A single layer that is not inside a block equals no other: it is never folded.
    """
    module = node.module
    if not node.children and not is_inside:
        return (module.name,)
    own = tuple((parameter.name, parameter.shape) for parameter in module.parameters)
    idle = module.order is None and module.alias_of is None
    children = sorted(node.children, key=lambda child: child.label)
    inside = tuple((child.label, _structure(child, is_inside=True)) for child in children)
    return module.kind, idle, own and module.output_shapes, own, inside
