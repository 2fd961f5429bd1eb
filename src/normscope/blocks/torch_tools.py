"""Support for torch tools that inspect a module's source or exact type: torch.jit.script, torch.fx, quantization.

torch.compile, torch.export, torch.jit.trace and torch.func run the forward pass and need no support.
"""

import sys
import warnings
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.fx import Proxy

from normscope.errors import TransformError


class BaseModule(nn.Module):
    """Base module: torch.jit.script raises an informative error, and torch.fx traces it as a leaf."""

    def __prepare_scriptable__(self) -> NoReturn:
        # torch.jit.script calls this on every module before reading its source.
        raise TransformError(
            f"{type(self).__name__} does not support torch.jit.script: its checks and its kernel dispatch use "
            f"Python features that TorchScript lacks\nfix: use torch.export.export, torch.compile or torch.jit.trace"
        )

    def _repr_html_(self) -> str:
        """The layers as text, for notebooks."""
        from normscope.render.notebook import preformatted

        return preformatted(repr(self))

    def _fx_call(self, *args: Any, **options: Any) -> Tensor:
        """Record the call of this module as a leaf node of the torch.fx graph, as torch's own layers are."""
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
    """Return whether x is a proxy of torch.fx.symbolic_trace."""
    return type(x) is not Tensor and isinstance(x, Proxy)


class Quantizable:
    """Mixin that warns if torch.ao.quantization silently skips the layer.

    Quantization looks layers up by exact type, which excludes subclasses. It sets `qconfig` on each module first.
    """

    torch_type: type[nn.Module]
    """The torch.nn type that quantization supports."""

    @property
    def qconfig(self) -> Any:
        try:
            return self.__dict__["_qconfig"]
        except KeyError:
            raise AttributeError("qconfig") from None

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        self.__dict__["_qconfig"] = value
        # The types to quantize are a local variable of the caller, above nn.Module.__setattr__.
        asked = sys._getframe(2).f_locals.get("qconfig_dict", (self.torch_type,))
        if value is not None or self.torch_type in asked:
            name = self.torch_type.__name__
            warnings.warn(
                f"torch.ao.quantization matches torch.nn.{name} by exact type and skips normscope's {name}"
                f"\nfix: quantize normscope.blocks.linear.with_torch_layers(model), which computes the same",
                RuntimeWarning,
                stacklevel=3,
            )

    @qconfig.deleter
    def qconfig(self) -> None:
        self.__dict__.pop("_qconfig", None)
