"""How the modules of a model are put together."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PeerDifference:
    """An attribute in which one of several alike modules differs from all others, which agree.

    Args:
        module: the module.
        attribute: its attribute, or that of a submodule, as `norm1.eps`; for a class, the name of the submodule.
        value, others: its value, and that of the others.
        peers: the number of others.
        is_inside: whether it is neither the first nor the last of them.
        is_class: whether the class of a submodule differs.
    """

    module: str
    attribute: str
    value: str
    others: str
    peers: int
    is_inside: bool
    is_class: bool = False


@dataclass(frozen=True)
class DropoutUse:
    """A dropout that was active.

    Args:
        module: the innermost module that called it.
        p: the largest fraction of values that it dropped.
        loss: the loss that got its output as predictions; "" if none did.
        source: the line that called it.
    """

    module: str
    p: float
    loss: str = ""
    source: str = ""


@dataclass(frozen=True)
class StructureRecord:
    """How modules were used.

    Args:
        returned: modules whose output the model returned.
        differences: what differs among alike modules.
        dropouts: dropouts of a large part of the values, or of predictions.
    """

    returned: tuple[str, ...] = ()
    differences: tuple[PeerDifference, ...] = ()
    dropouts: tuple[DropoutUse, ...] = ()
