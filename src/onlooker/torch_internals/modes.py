"""The modes in which a caller may stand: transforms, functions, dispatch, autocast, traces.

These are asked for at every watched call: nothing here is slower than the name of torch.
"""

from __future__ import annotations

from .needed import needed

with needed("the modes of the caller"):
    from torch._C import DisableTorchFunction as WithoutFunctions
    from torch._C import (
        _get_tracing_state as jit_tracing_state,
    )
    from torch._C import (
        _is_any_autocast_enabled as is_any_autocast_enabled,
    )
    from torch._C import (
        _len_torch_function_stack as number_of_function_modes,
    )
    from torch._C._functorch import is_functorch_wrapped_tensor
    from torch.fx._symbolic_trace import is_fx_symbolic_tracing
    from torch.overrides import _pop_mode_temporarily as without_last_function_mode
    from torch.utils._python_dispatch import (
        TorchDispatchMode,
    )
    from torch.utils._python_dispatch import (
        _disable_current_modes as without_dispatch_modes,
    )

__all__ = [
    "BesideCompilers",
    "TorchDispatchMode",
    "WithoutFunctions",
    "is_any_autocast_enabled",
    "is_functorch_wrapped_tensor",
    "is_fx_symbolic_tracing",
    "jit_tracing_state",
    "number_of_function_modes",
    "without_dispatch_modes",
    "without_last_function_mode",
]


class BesideCompilers:
    """For modes of dispatch: the compiler of torch stays on while a mode runs an operator. To switch it
    off and on takes as long as a short operator.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
