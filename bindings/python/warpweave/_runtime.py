"""The context of the process, and plans by what stays the same from call to call."""

import os
import threading

from . import _core

_lock = threading.Lock()
_context = None
_generation = 0
_local = threading.local()
_MAX_PLANS = 64


def context():
    global _context
    with _lock:
        if _context is None:
            _context = _core.Context(int(os.environ.get("WARPWEAVE_THREADS", "0")))
        return _context


def set_num_threads(threads):
    """Compute threads of later calls; 0: one per usable CPU. WARPWEAVE_THREADS says it at start."""
    global _context, _generation
    created = _core.Context(threads)
    with _lock:
        _context = created
        _generation += 1


def workspace():
    """Scratch memory of this thread, shared by its plans: their runs do not overlap."""
    current = context()
    if getattr(_local, "generation", None) != _generation:
        _local.generation = _generation
        _local.workspace = _core.Workspace(current, 0)
        _local.plans = {}
    return _local.workspace


class Planned:
    """A plan, and the batch that it was planned for, where that is known."""

    def __init__(self, core):
        self.core = core
        self._batch = self._key = None

    def set_batch(self, batch, stream):
        """Plans the batch, unless it is the one that was planned last."""
        if batch is self._batch:
            return
        key = batch.key()
        if key != self._key:
            self._batch = self._key = None
            self.core.set_batch(**batch.arguments(), stream=stream)
        self._batch, self._key = batch, key


def plan(**options):
    """A plan of this thread with these options: the backend is chosen once for all calls that look alike."""
    scratch = workspace()
    key = tuple(options.values())  # always the same options in the same order
    found = _local.plans.pop(key, None)
    if found is None:
        found = Planned(_core.Plan(scratch, **options))
        if len(_local.plans) >= _MAX_PLANS:
            del _local.plans[next(iter(_local.plans))]
    _local.plans[key] = found  # the one used last stands last
    return found
