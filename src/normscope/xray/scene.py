"""What those who watch modules and those who watch functions share: who is running, what is known of tensors."""

from dataclasses import dataclass, field

from torch import Tensor, nn

from normscope.kernels.moments import Moments
from normscope.xray import record
from normscope.xray.sightings import JoinPlace, Sightings
from normscope.xray.tally import Tally
from normscope.xray.tensors import is_measurable


@dataclass
class Frame:
    """A module that is running: who it is, and how often it has called each function so far."""

    module: nn.Module
    tally: Tally
    functions: dict[str, int] = field(default_factory=dict)
    joins: int = 0
    finite_inputs: bool = True
    channels: int = -1
    after_join: tuple[JoinPlace, str] | None = None
    """The addition whose sum it was given, and its own name, if it is a norm."""
    skipped: bool = False
    """Computed once more on the way back, for a checkpoint: nothing is counted."""


class Scene:
    """The state of an x-ray while it looks."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.functions: dict[str, list[str]] = {}  # of each module, the functions that it called
        self.stack: list[Frame] = []
        self.sightings = Sightings()
        self.losses: list[record.Loss] = []
        self.notices: dict[str, None] = {}
        self.batches = 0
        self.looking = False
        self.unreal_gradient_found = False
        self._order = 0

    def next_order(self) -> int:
        self._order += 1
        return self._order - 1

    def notice(self, text: str) -> None:
        self.notices[text] = None

    @property
    def is_skipping(self) -> bool:
        return bool(self.stack) and self.stack[-1].skipped

    def watch_gradient(self, tensor: Tensor, tally: Tally) -> None:
        """When the loss's gradient of a tensor comes, measure it for the one that made the tensor."""
        if not tensor.requires_grad or not is_measurable(tensor):
            return
        readers = self.sightings.of(tensor).readers

        def take(gradient: Tensor) -> None:
            if not self.looking or not is_measurable(gradient):
                return
            found = self.sightings.moments(gradient)
            tally.add_gradient(found, gradient)
            if found.unreal and not self.unreal_gradient_found:
                self._blame(tally, readers)

        tensor.register_hook(take)

    def _blame(self, maker: Tally, readers: list[str]) -> None:
        """The gradient of a tensor is not finite, for the first time: it was made by one of those that read the tensor.

        The innermost one is meant, which is the last that was given it before another began.
        """
        self.unreal_gradient_found = True
        for name in reversed(readers):
            reader = self.tallies[name]
            if reader.gradient is None or not reader.gradient.unreal:
                reader.made_unreal_gradient = True
                return
        maker.made_unreal_gradient = True

    def moments(self, tensor: Tensor) -> Moments:
        return self.sightings.moments(tensor)
