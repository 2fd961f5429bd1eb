"""Environment variables that restrict torch, oneDNN, MKL and numba to the instructions of older CPUs."""

import platform

import torch

# Features of Haswell and Nehalem. They are listed because with only a CPU name numba adds the host's features.
_NEHALEM = "+64bit,+cmov,+cx16,+cx8,+fxsr,+mmx,+popcnt,+sahf,+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3"
_HASWELL = (
    f"{_NEHALEM},+avx,+avx2,+bmi,+bmi2,+crc32,+f16c,+fma,+fsgsbase,+invpcid,+lzcnt,+movbe,+pclmul,+rdrnd,+xsave,"
    "+xsaveopt"
)
_AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": _HASWELL,
}
_SSE = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "NUMBA_CPU_NAME": "nehalem",
    "NUMBA_CPU_FEATURES": _NEHALEM,
}

PROCESSORS: dict[str, dict[str, str]] = {
    "avx2": {**_AVX2, "OMP_NUM_THREADS": "1"},
    "avx2-two-threads": {**_AVX2, "OMP_NUM_THREADS": "2", "NORMSCOPE_TEST_THREADS": "2"},
    "sse": {**_SSE, "OMP_NUM_THREADS": "1"},
    "two-threads": {"OMP_NUM_THREADS": "2", "NORMSCOPE_TEST_THREADS": "2"},
}
"""Environment variables of each CPU."""

REGISTERS = {"avx2": {"xmm", "ymm"}, "avx2-two-threads": {"xmm", "ymm"}, "sse": {"xmm"}}
"""Vector registers that numba's machine code may use on each CPU."""


def missing(name: str) -> str:
    """Why this machine can't emulate the CPU; empty if it can."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return "not an x86 CPU"
    if "avx2" in name and torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return "the CPU has no AVX2"
    return ""
