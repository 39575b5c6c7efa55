"""AOTInductor: the compiler, and what it makes."""

from __future__ import annotations

from .needed import needed

with needed("packages of AOTInductor"):
    from torch._inductor import aoti_compile_and_package, aoti_load_package
    from torch._inductor.codecache import get_device_information
    from torch._inductor.cpp_builder import get_cpp_compiler

__all__ = [
    "aoti_compile_and_package",
    "aoti_load_package",
    "get_cpp_compiler",
    "get_device_information",
]
