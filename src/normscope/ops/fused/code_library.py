"""Self-contained machine code: the results of a kernel do not depend on other code in the process.

numba copies the functions that a kernel calls into the kernel's object file, optimizes them once more there, and leaves
them visible under one name. A process has one function per name, and the first one wins: the function's own code in a
process that compiled it, the kernel's copy in one that loaded the kernel from disk. The two are optimized differently,
so that their last bits can differ.

A function that only other kernels call is kept as LLVM code for them. Machine code of its own would never run, and
making it takes an eighth of the time that it takes to compile all kernels.
"""

from typing import Any

from llvmlite import binding
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class SelfContainedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of one kernel, with copies of the functions that it calls, which no other kernel sees.

    Args:
        for_kernels: whether only other kernels call it.
    """

    _final_module: Any

    def __init__(self, codegen: Any, name: str, for_kernels: bool) -> None:
        super().__init__(codegen, name)
        self._for_kernels = for_kernels

    def _finalize_final_module(self) -> None:
        # For callers. It goes through bitcode as one that is loaded does, so that callers are compiled from the same.
        self._shared_module = binding.parse_bitcode(self._final_module.as_bitcode())
        for function in self._shared_module.functions:
            if not function.is_declaration and function.linkage == binding.Linkage.external:
                function.linkage = "linkonce_odr"
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == binding.Linkage.linkonce_odr:
                function.linkage = "private"
        if self._for_kernels:
            self._final_module = _without_functions(self._final_module)
        super()._finalize_final_module()


def _without_functions(module: Any) -> Any:
    """Return a module with only the variables that numba sets when it loads one: the functions' environments."""
    variables = [str(v) for v in module.global_variables if v.linkage == binding.Linkage.common]
    target = [f'target datalayout = "{module.data_layout}"', f'target triple = "{module.triple}"']
    small = binding.parse_assembly("\n".join([*target, *variables]))
    small.name = module.name
    return small


class KernelCompiler(Compiler):  # type: ignore[misc]
    """numba's compiler, which makes self-contained code."""

    def compile_extra(self, func: Any) -> Any:
        for_kernels = self.state.flags.no_cpython_wrapper
        library = SelfContainedLibrary(self.state.targetctx.codegen(), func.__qualname__, for_kernels)
        library.enable_object_caching()
        self.state.library = library
        return super().compile_extra(func)
