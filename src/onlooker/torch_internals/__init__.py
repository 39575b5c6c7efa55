"""The names of torch that onlooker needs beyond its documented ones: one file a concern.

Nothing else in onlooker imports a private module of torch, which a test holds. Each file says what
its names are for, and the versions of torch with which they were checked; ``make matrix`` checks
them again, and writes docs/versions.md. Where a version of torch has no such name, the import ends
with one error that says which, and not with an ``ImportError`` from the midst of something else.

=============== ===============================================================================
fake_tensors    tensors without values
sizes           symbolic sizes, their ranges, and the expressions that they are
tracing         what stands in a trace: modes, proxies, settings of the compiler
trees           pytrees: registered classes and their order
modes           the modes of the caller: transforms, autocast, dispatch
operators       the classes of operators
serialized      the format of ``.pt2`` files
compiled        AOTInductor
=============== ===============================================================================
"""
