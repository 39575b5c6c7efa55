"""Set when this module is imported, which has to be before torch is: one thread, no hub, few words."""

import os

SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
}
for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)
