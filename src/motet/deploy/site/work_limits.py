"""Limits of time and memory for one letter: work that takes too much ends with an error, and nothing is kept of it.

Time: a watching thread raises the error in the thread that works, and again until the work ends; one call of torch or
numpy is finished first. Memory: the system refuses to give the process more than it had and the letter's share.
Knows clocks and the process. Does not know what is computed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from motet.errors import MotetError

try:
    import resource
except ImportError:  # a system without limits of this kind
    resource = None  # type: ignore[assignment]

_AGAIN = 0.5  # seconds after which the error is raised once more, where something has caught it
_STEPS = 100  # of Python, after which nothing is on its way
_PAGE = 4096


class LimitReached(MotetError):
    """A letter's work took longer, or more memory, than the site allows."""


class _TimeIsUp(BaseException):
    """Raised in the thread that works. No Exception, so that nothing that expects errors of the work catches it."""


@contextmanager
def limited(seconds: float, memory: int) -> Iterator[None]:
    """Work under limits; what it raises for want of memory is a LimitReached too."""
    try:
        with at_most(memory), ended_after(seconds):
            yield
    except _TimeIsUp:
        raise LimitReached(f"the letter took longer than {seconds:g} s") from None
    except (MemoryError, RuntimeError, MotetError) as e:
        if for_want_of_memory(e) or for_want_of_memory(e.__cause__):
            raise LimitReached(f"the letter needs more than {memory:,} bytes of memory") from e
        raise


def for_want_of_memory(e: BaseException | None) -> bool:
    """Whether this is how Python, torch or C++ say that there is no more memory."""
    return isinstance(e, MemoryError) or "allocate memory" in str(e) or "bad_alloc" in str(e)


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Raise _TimeIsUp in this thread if the block takes longer."""
    worker, over = threading.get_ident(), threading.Event()
    changing = threading.Lock()  # so that nothing is raised once the block has ended

    def watch() -> None:
        pause = seconds
        while not over.wait(pause):
            with changing:
                if not over.is_set():
                    raise_in(worker, _TimeIsUp)
            pause = _AGAIN

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        while not ended(over, changing):
            pass


def ended(over: threading.Event, changing: threading.Lock) -> bool:
    """Stop watching; False if what was raised arrived only now. Nothing more is on its way after a True."""
    try:
        with changing:
            over.set()
        for _ in range(_STEPS):  # it arrives between two steps of Python
            pass
        return True
    except _TimeIsUp:
        return False


def raise_in(thread: int, error: type[BaseException]) -> None:
    """Let a thread raise an error at its next step."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


@contextmanager
def at_most(memory: int) -> Iterator[None]:
    """Give this process no more memory than it has and `memory` bytes."""
    if resource is None or (now := address_space()) is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = now + memory
    most = min(x for x in (wanted, soft, hard) if x != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def address_space() -> int | None:
    """Bytes that this process has asked for; None where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
    except OSError:
        return None
