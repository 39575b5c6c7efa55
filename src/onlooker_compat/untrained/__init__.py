"""Models of well-known architectures with random weights, made tiny by rule; nothing is ever
downloaded.
"""

from __future__ import annotations

from .build import get_untrained_model_with_inputs as get_untrained_model_with_inputs
from .published import preinstalled as preinstalled
from .tiny import TinyModelWithInputs as TinyModelWithInputs
from .tiny import get_cached_configuration as get_cached_configuration
from .tiny import get_phi2 as get_phi2
from .tiny import get_tiny_llm as get_tiny_llm
from .tiny import get_tiny_model as get_tiny_model

__all__ = [
    "TinyModelWithInputs",
    "get_cached_configuration",
    "get_phi2",
    "get_tiny_llm",
    "get_tiny_model",
    "get_untrained_model_with_inputs",
    "preinstalled",
]
