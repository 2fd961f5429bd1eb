"""The modules of a record as a tree, in which blocks that are built alike can be folded into one."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from normscope.diagnostics.record import ModuleRecord, XrayRecord

FEWEST = 3
"""So many blocks of the same structure, one after the other, are worth folding."""


@dataclass(eq=False)
class Node:
    """A module and those inside of it.

    Args:
        module: its figures.
        label: its name without its parent's.
        parameters: how many numbers its parameters and those of all inside of it have, each counted once.
        children: in the order in which they run; those that never ran come last.
        alike: the siblings that are built as this one is and stand folded behind it.
        own_flops: the arithmetic that it does beside the modules in it: by a tied head, or attention's own products.
    """

    module: ModuleRecord
    label: str
    parameters: int = 0
    children: list["Node"] = field(default_factory=list)
    alike: list["Node"] = field(default_factory=list)
    own_flops: int = 0

    def walk(self) -> Iterator["Node"]:
        """This one, and all that are shown below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def first(self) -> int | None:
        """The order of the first module here that ran; a list of modules does not run itself."""
        orders = [node.module.order for node in self.walk() if node.module.order is not None]
        return min(orders, default=None)


def tree_of(record: XrayRecord) -> list[Node]:
    """The roots: the model itself, or nothing if the record is empty.

    >>> modules = ModuleRecord("", "Net"), ModuleRecord("a", "Linear"), ModuleRecord("a.b", "ReLU")
    >>> [[node.label for node in root.walk()] for root in tree_of(XrayRecord("Net", modules, 1, 0))]
    [['Net', 'a', 'b']]
    """
    nodes: dict[str, Node] = {}
    roots = []
    for module in record.modules:
        parent, _, label = module.name.rpartition(".")
        while parent and parent not in nodes:
            parent = parent.rpartition(".")[0]
        node = nodes[module.name] = Node(module, label or record.model)
        if parent in nodes and module.name:
            node.label = module.name.removeprefix(f"{parent}.") if parent else module.name
            nodes[parent].children.append(node)
        else:
            roots.append(node)
    for node in reversed(nodes.values()):  # children come after their parents
        own = node.module.parameter_count if node.module.alias_of is None else 0
        node.parameters = own + sum(child.parameters for child in node.children)
        node.children.sort(key=_by_first_call)
        node.own_flops = _own_flops(node)
    return roots


def fold(node: Node, keep: Collection[str]) -> Node:
    """The same tree, with runs of siblings that are built alike folded behind the first of each.

    Args:
        node: where to begin.
        keep: names of modules that must stay in sight, with all that is above them.
    """
    children: list[Node] = []
    for run in _runs(node.children):
        shown = [child for child in run if len(run) < FEWEST or child is run[0] or _holds(child, keep)]
        folded = [fold(child if child is run[0] or len(run) < FEWEST else _path(child, keep), keep) for child in shown]
        folded[0].alike = [child for child in run if child not in shown]
        children += folded
    return Node(node.module, node.label, node.parameters, children, node.alike, node.own_flops)


def _path(node: Node, names: Collection[str]) -> Node:
    """Of a block that is built as another is, only what leads to the modules of these names."""
    children = [_path(child, names) for child in node.children if _holds(child, names)]
    return Node(node.module, node.label, node.parameters, children, own_flops=node.own_flops)


def never_ran(record: XrayRecord) -> list[ModuleRecord]:
    """The outermost modules of which nothing ran, though they have work to do; not second names of others."""
    found: list[ModuleRecord] = []
    for root in tree_of(record):
        found += _idle(root)
    return found


def is_idle(node: Node) -> bool:
    """Whether nothing here ran, though there is something that could have.

    A second name of another is not idle, nor is a module whose weights were used without calling it.
    """
    if node.first is not None or node.module.alias_of is not None:
        return False
    own = [parameter for inner in node.walk() for parameter in inner.module.parameters]
    is_empty_list = not node.children and not own and node.module.kind.endswith(("List", "Dict"))
    return not is_empty_list and not any(parameter.gradient is not None for parameter in own)


def _own_flops(node: Node) -> int:
    """What its children do not account for; nothing where one is shared with others, whose work is counted there."""
    inner = [child for child in node.walk() if child is not node]
    if not node.module.flops or not inner or any(child.module.alias_of is not None for child in inner):
        return 0
    return max(0, node.module.flops - sum(_flops(child) for child in node.children))


def _flops(node: Node) -> int:
    """The arithmetic of a module; of a list, which does not run itself, that of what is in it."""
    return node.module.flops or sum(_flops(child) for child in node.children)


def _idle(node: Node) -> list[ModuleRecord]:
    return [node.module] if is_idle(node) else [module for child in node.children for module in _idle(child)]


def _runs(nodes: list[Node]) -> list[list[Node]]:
    runs: list[list[Node]] = []
    before = None
    for node in nodes:
        structure = _structure(node)
        if runs and structure == before and node.children:  # single layers say too little to be hidden
            runs[-1].append(node)
        else:
            runs.append([node])
        before = structure
    return runs


def _structure(node: Node) -> tuple[object, ...]:
    """What two blocks have in common if they are built alike; a module that they share runs as the first one's."""
    module = node.module
    own = tuple((parameter.name, parameter.shape) for parameter in module.parameters)
    idle = module.order is None and module.alias_of is None
    inside = tuple((child.label, _structure(child)) for child in sorted(node.children, key=lambda child: child.label))
    return module.kind, idle, own and module.output_shapes, own, inside


def _holds(node: Node, names: Collection[str]) -> bool:
    return any(inner.module.name in names for inner in node.walk())


def _by_first_call(node: Node) -> tuple[bool, int]:
    first = node.first
    return first is None, first or 0
