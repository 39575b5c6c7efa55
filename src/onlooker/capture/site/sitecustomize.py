"""Runs when Python starts in a program that ``onlooker run`` watches; no other Python sees it.

It starts the watching, takes its folder off the path, and runs the ``sitecustomize`` that the
program has itself.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys


def _start() -> None:
    told = os.environ.get("ONLOOKER_RUN")
    if told is None:
        return
    try:
        # the package that the command is of, also in an environment that lacks it
        folder = os.path.join(json.loads(told)["home"], "onlooker")
        spec = importlib.util.spec_from_file_location(
            "onlooker", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["onlooker"] = module
        spec.loader.exec_module(module)
        from onlooker.capture.startup import start

        start()
    except Exception:  # the program runs whatever happens here
        if os.environ.get("ONLOOKER_RUN_DEBUG"):
            raise


def _chain() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_start()
_chain()
