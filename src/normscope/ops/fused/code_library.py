"""Self-contained machine code: what a kernel computes does not depend on what else its process compiled or loaded.

numba copies the functions that a kernel calls into the kernel's object file, optimizes them once more there, and leaves
them visible under one name. A process has one function per name, and the first one wins: the function's own code in a
process that compiled it, the kernel's copy in one that loaded the kernel from disk. The two are optimized differently,
so that their last bits can differ.
"""

from typing import Any

from llvmlite import binding
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class SelfContainedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of one kernel, with copies of the functions that it calls, which no other kernel sees."""

    def _finalize_final_module(self) -> None:
        # For callers. It goes through bitcode as one that is loaded does, so that callers are compiled from the same.
        self._shared_module = binding.parse_bitcode(self._final_module.as_bitcode())
        for function in self._shared_module.functions:
            if not function.is_declaration and function.linkage == binding.Linkage.external:
                function.linkage = "linkonce_odr"
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == binding.Linkage.linkonce_odr:
                function.linkage = "private"
        super()._finalize_final_module()


class KernelCompiler(Compiler):  # type: ignore[misc]
    """numba's compiler, which makes self-contained code."""

    def compile_extra(self, func: Any) -> Any:
        library = SelfContainedLibrary(self.state.targetctx.codegen(), func.__qualname__)
        library.enable_object_caching()
        self.state.library = library
        return super().compile_extra(func)
