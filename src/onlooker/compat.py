"""The names of onlooker under which users of other packages know them: change the import, and
nothing else.

::

    from onlooker.compat import InputObserver, make_dynamic_cache, string_type, torch_deepcopy

The names are those of :mod:`onlooker_compat`, which is imported when the first of them is used. Where
the other packages have an argument ``verbose``, it is accepted and ignored: onlooker logs through
:mod:`logging`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onlooker_compat.names import *  # noqa: F403 (the names of that module, all of them)
else:
    from onlooker_compat import __dir__ as __dir__
    from onlooker_compat import __getattr__ as __getattr__
