"""What layers and models tell torch's older tools, which read a module's source or its exact type.

torch.compile, torch.export, torch.jit.trace and torch.func run a forward pass, and need nothing from here.
"""

import sys
import warnings
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.fx import Proxy

from normscope.errors import TransformError


class BaseModule(nn.Module):
    """A module that torch.jit.script refuses with a reason, and that torch.fx takes as a whole."""

    def __prepare_scriptable__(self) -> NoReturn:
        # torch.jit.script asks every module for this before it reads any source.
        raise TransformError(
            f"{type(self).__name__} cannot be compiled by torch.jit.script: its checks and its choice of a kernel are "
            f"Python that TorchScript does not have\nfix: use torch.export.export, torch.compile or torch.jit.trace"
        )

    def _fx_call(self, *args: Any, **options: Any) -> Tensor:
        """The call of this module as one node of the graph that torch.fx.symbolic_trace makes.

        torch's own layers are such nodes because of where they are defined; ours have to say so.
        """
        tracer = args[0].tracer
        if tracer.root is self:
            raise TransformError(
                f"{type(self).__name__} is a single node for torch.fx.symbolic_trace, which has nothing to trace in it"
                f"\nfix: trace a module that contains it, such as nn.Sequential(module), or use torch.export.export"
            )
        while args and args[-1] is None:
            args = args[:-1]
        options = {name: value for name, value in options.items() if value is not None}
        node: Tensor = tracer.create_proxy("call_module", tracer.path_of_module(self), args, options)
        return node


def is_fx_proxy(x: object) -> bool:
    """Whether torch.fx.symbolic_trace is at work: it gives proxies in place of tensors."""
    return type(x) is not Tensor and isinstance(x, Proxy)


class Quantizable:
    """A layer that warns where torch.ao.quantization would pass it over without a word.

    It looks layers up by their exact type, among which ours are not, and first sets each module's `qconfig`.
    """

    torch_type: type[nn.Module]
    """The type that it knows."""

    @property
    def qconfig(self) -> Any:
        try:
            return self.__dict__["_qconfig"]
        except KeyError:
            raise AttributeError("qconfig") from None

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        self.__dict__["_qconfig"] = value
        # What is to be quantized stands in the caller, behind nn.Module.__setattr__; else it is not known.
        asked = sys._getframe(2).f_locals.get("qconfig_dict", (self.torch_type,))
        if value is not None or self.torch_type in asked:
            name = self.torch_type.__name__
            warnings.warn(
                f"torch.ao.quantization knows torch.nn.{name} by its exact type and leaves normscope's {name} as it is"
                f"\nfix: quantize normscope.blocks.linear.with_torch_layers(model), which computes the same",
                RuntimeWarning,
                stacklevel=3,
            )

    @qconfig.deleter
    def qconfig(self) -> None:
        self.__dict__.pop("_qconfig", None)
