"""The settings of OpenVINO: the device, and the properties that models are compiled with.

They belong to one process and one machine: no file that is saved holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...core.errors import UsageError
from ..refused import last_words

__all__ = ["SETTINGS", "DeviceSettings", "settings_of"]

#: the keywords that users give
SETTINGS = ("device", "config")
#: a device would else compute in the dtype that is fastest there: bfloat16 on many processors
_EXACT = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
#: with one thread OpenVINO 2026.4 raises no error where shapes do not fit together: a sum of 4 and of 3
#: numbers has none
_FEWEST_THREADS = 2


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """``device`` is a name as ``"CPU"``, ``"GPU.0"`` or ``"AUTO:GPU,CPU"``; ``config`` are
    properties by name, which go before those that keep float32 what it is.
    """

    device: str = "CPU"
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def properties(self) -> dict[str, Any]:
        """All properties that a model is compiled with; the CPU has as many threads as torch, two at
        least.
        """
        count = max(_FEWEST_THREADS, torch.get_num_threads())
        threads = {"INFERENCE_NUM_THREADS": count} if self.device == "CPU" else {}
        return {**_EXACT, **threads, **self.config}


def settings_of(device: Any = None, config: Any = None) -> DeviceSettings:
    """Checks the settings that a user gave before any work is done with them; None stands for the
    default.

    :raises UsageError: ``bad-openvino-options``
    """
    if device is not None and not (isinstance(device, str) and device):
        raise _bad(f"device is {device!r}, which is no name of a device.")
    if config is not None and not _is_config(config):
        raise _bad(f"config is {config!r}, which has not properties by their names.")
    settings = DeviceSettings(device or "CPU", dict(config or {}))
    _check(settings)
    return settings


def _is_config(config: Any) -> bool:
    return isinstance(config, Mapping) and all(isinstance(name, str) for name in config)


def _check(settings: DeviceSettings) -> None:
    """Compiles a model of one addition: OpenVINO says what it does not know."""
    import numpy
    import openvino
    from openvino import opset13

    value = opset13.parameter([1], numpy.float32)
    model = openvino.Model([opset13.add(value, value)], [value], "settings")
    try:
        openvino.Core().compile_model(model, settings.device, settings.properties)
    except Exception as error:
        said = last_words(error, 300)
        raise _bad(
            f"OpenVINO does not take device={settings.device!r} with this config: {said}"
        ) from error


def _bad(message: str) -> UsageError:
    return UsageError(
        message,
        slug="bad-openvino-options",
        hint=(
            "Give device='CPU' or a name of openvino.Core().available_devices, and config with"
            " properties of OpenVINO, as in {'INFERENCE_NUM_THREADS': 4}."
        ),
    )
