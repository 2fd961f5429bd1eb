"""The module tree of a record, with identical blocks folded into one."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from normscope.diagnostics.record import ModuleRecord, XrayRecord

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

    def walk(self) -> Iterator["ModuleNode"]:
        """This node and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def first(self) -> int | None:
        """Execution order of the first module here that ran; containers such as nn.ModuleList do not run."""
        orders = [node.module.order for node in self.walk() if node.module.order is not None]
        return min(orders, default=None)


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
        node.children.sort(key=_by_first_call)
        node.own_flops = _own_flops(node)
    return roots


def fold(node: ModuleNode, keep: Collection[str]) -> ModuleNode:
    """Fold runs of siblings with the same structure into the first of each.

    Args:
        node: root of the tree.
        keep: names of modules that stay visible, with their ancestors.
    """
    children: list[ModuleNode] = []
    for run in _runs(node.children):
        shown = [child for child in run if len(run) < MIN_TO_FOLD or child is run[0] or _holds(child, keep)]
        folded = [
            fold(child if child is run[0] or len(run) < MIN_TO_FOLD else _path(child, keep), keep) for child in shown
        ]
        folded[0].folded = [child for child in run if child not in shown]
        children += folded
    return ModuleNode(node.module, node.label, node.parameters, children, node.folded, node.own_flops)


def _path(node: ModuleNode, names: Collection[str]) -> ModuleNode:
    """Of a folded block, only the path to the modules with these names."""
    children = [_path(child, names) for child in node.children if _holds(child, names)]
    return ModuleNode(node.module, node.label, node.parameters, children, own_flops=node.own_flops)


def unused_modules(record: XrayRecord) -> list[ModuleRecord]:
    """The outermost modules of which nothing ran, without aliases of other modules."""
    found: list[ModuleRecord] = []
    for root in build_tree(record):
        found += _unused(root)
    return found


def is_unused(node: ModuleNode) -> bool:
    """Whether nothing here ran, although something could have.

    Aliases do not count as unused, nor do modules whose weights were used without calling them.
    """
    if node.first is not None or node.module.alias_of is not None:
        return False
    own = [parameter for inner in node.walk() for parameter in inner.module.parameters]
    is_empty_list = not node.children and not own and node.module.kind.endswith(("List", "Dict"))
    return not is_empty_list and not any(parameter.gradient is not None for parameter in own)


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
    return [node.module] if is_unused(node) else [module for child in node.children for module in _unused(child)]


def _runs(nodes: list[ModuleNode]) -> list[list[ModuleNode]]:
    runs: list[list[ModuleNode]] = []
    before = None
    for node in nodes:
        structure = _structure(node)
        if runs and structure == before and node.children:  # never fold single layers
            runs[-1].append(node)
        else:
            runs.append([node])
        before = structure
    return runs


def _structure(node: ModuleNode) -> tuple[object, ...]:
    """A key that is equal for blocks with the same structure; a shared module counts as having run."""
    module = node.module
    own = tuple((parameter.name, parameter.shape) for parameter in module.parameters)
    idle = module.order is None and module.alias_of is None
    inside = tuple((child.label, _structure(child)) for child in sorted(node.children, key=lambda child: child.label))
    return module.kind, idle, own and module.output_shapes, own, inside


def _holds(node: ModuleNode, names: Collection[str]) -> bool:
    return any(inner.module.name in names for inner in node.walk())


def _by_first_call(node: ModuleNode) -> tuple[bool, int]:
    first = node.first
    return first is None, first or 0
