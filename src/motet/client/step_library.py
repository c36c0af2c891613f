"""Generated C++ as a library in this process: compiled once, kept in motet's cache, called without Python's lock.

A file in the cache is named by a hash of the text, the compiler's version and the processor, so that another machine
with the same home folder compiles its own.
Knows compilers and files. Does not know what the text computes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from motet.client.array_code import CannotGenerate

HEADER = Path(__file__).with_name("step_kernels.h")
_OPTIONS = (
    "-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd",
    "-shared", "-fPIC", "-pthread", "-w",
)  # fmt: skip
_LONGEST = 120  # seconds that a compiler may take


def compiler() -> str | None:
    """The C++ compiler: CXX, g++ or clang++."""
    named = os.environ.get("CXX", "")
    return next(filter(None, map(shutil.which, filter(None, (named, "g++", "clang++")))), None)


class Library:
    """One compiled text. Its function `motet_clients` is given how many clients and threads, and the addresses of
    tensors with the number of elements from one client to the next, 0 where all clients share them."""

    def __init__(self, text: str) -> None:
        self.file = built(text)
        self.function = ctypes.CDLL(str(self.file)).motet_clients
        self.function.restype = ctypes.c_int

    def __call__(self, clients: int, threads: int, tensors: Sequence[Tensor], apart: Sequence[int]) -> None:
        many = len(tensors)
        addresses = (ctypes.c_void_p * many)(*(t.data_ptr() for t in tensors))
        distances = (ctypes.c_int64 * many)(*apart)
        if self.function(ctypes.c_int64(clients), ctypes.c_int64(threads), addresses, distances):
            raise IndexError("a target or an index names a row or a class that is not there")


def built(text: str) -> Path:
    """The library of a text, from the cache or compiled now."""
    program = compiler()
    if program is None:
        raise CannotGenerate("no C++ compiler was found")
    header = HEADER.read_text()
    words = (text, header, version_of(program), processor(), *_OPTIONS)
    name = sha256("\x1f".join(words).encode()).hexdigest()[:40]
    place = cache_folder() / f"{name}.so"
    if not place.exists():
        compile_into(place, program, text.replace('#include "step_kernels.h"', header))
    return place


def compile_into(place: Path, program: str, text: str) -> None:
    """Another process that compiles the same text at the same time puts the same file there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        source, made = Path(folder) / "steps.cpp", Path(folder) / "steps.so"
        source.write_text(text)
        words = [program, *_OPTIONS, str(source), "-o", str(made)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_LONGEST, check=False)
        except (OSError, subprocess.TimeoutExpired) as e:
            raise CannotGenerate(f"{Path(program).name} did not finish: {e}") from e
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
            raise CannotGenerate(f"{Path(program).name} failed: {first.strip()}")
        os.replace(made, place)


def cache_folder() -> Path:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "motet" / "steps"


@cache
def version_of(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]


@cache
def processor() -> str:
    """What the compiler's -march=native goes by."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    facts = sorted(
        {line for line in lines if line.split(":")[0].strip() in ("flags", "Features", "model", "model name")}
    )
    return "\n".join(
        [platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability(), *facts]
    )
