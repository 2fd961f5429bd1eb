"""A pytest plugin that lists the vector registers in the machine code of every kernel numba compiled for the tests.

Writes JSON to the file in NORMSCOPE_MACHINE_CODE: {"module.function": ["xmm", "ymm"], ...}.
"""

import json
import os
import re
import sys
from pathlib import Path

from numba.core.dispatcher import Dispatcher


def registers(assembly: str) -> list[str]:
    """Kinds of vector registers in the assembly."""
    return sorted(set(re.findall(r"%([xyz]mm)\d", assembly)))


def compiled_kernels() -> dict[str, list[str]]:
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("normscope.ops.fused."):
            for function in vars(module).values():
                if isinstance(function, Dispatcher) and function.py_func.__module__ == name:
                    # numba does not show code that it loaded, which a process of an earlier test has compiled.
                    libraries = [overload.library for overload in function.overloads.values()]
                    shown = [library.get_asm_str() for library in libraries if not library._disable_inspection]
                    if shown:
                        used = {kind for text in shown for kind in registers(text)}
                        found[f"{name}.{function.py_func.__name__}"] = sorted(used)
    return found


def pytest_sessionfinish() -> None:
    Path(os.environ["NORMSCOPE_MACHINE_CODE"]).write_text(json.dumps(compiled_kernels()))
