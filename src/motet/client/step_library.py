"""Generated C++ as a library in this process: compiled once, kept in motet's cache, called without Python's lock.

A file in the cache is named by a hash of the text, the compiler's version and the processor, so that another machine
with the same home folder compiles its own. Without a cache that is this user's alone (code_cache.py) a process compiles
for itself, and leaves no file.
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
from typing import Any

import torch
from torch import Tensor

from motet.client.array_code import CannotGenerate
from motet.client.code_cache import code_cache, is_whole, seal

HEADER = Path(__file__).with_name("step_kernels.h")
_OPTIONS = (
    "-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd",
    "-shared", "-fPIC", "-pthread", "-w",
)  # fmt: skip
_LONGEST = 120  # seconds that a compiler may take


def compiler() -> str | None:
    """The C++ compiler: CXX, g++ or clang++, the first that works."""
    named = os.environ.get("CXX", "")
    there = filter(None, map(shutil.which, filter(None, (named, "g++", "clang++"))))
    return next(filter(works, there), None)


@cache
def works(program: str) -> bool:
    """Whether it finds the standard library's headers. Some systems have a g++ that only says what to install."""
    words = [program, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    text = "#include <atomic>\n#include <thread>\n#include <vector>\n"
    try:
        done = subprocess.run(
            words, input=text, capture_output=True, text=True, timeout=_LONGEST, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


class Library:
    """One compiled text. Its function `motet_clients` is given how many clients and threads, and the addresses of
    tensors with the number of elements from one client to the next, 0 where all clients share them."""

    def __init__(self, text: str) -> None:
        with tempfile.TemporaryDirectory() as own:  # a library that is loaded needs its file no more
            self.function = function_of(built(text, code_cache("steps") or Path(own)))
        self.function.restype = ctypes.c_int

    def __call__(self, clients: int, threads: int, tensors: Sequence[Tensor], apart: Sequence[int]) -> None:
        many = len(tensors)
        addresses = (ctypes.c_void_p * many)(*(t.data_ptr() for t in tensors))
        distances = (ctypes.c_int64 * many)(*apart)
        if self.function(ctypes.c_int64(clients), ctypes.c_int64(threads), addresses, distances):
            raise IndexError("a target or an index names a row or a class that is not there")


def function_of(file: Path) -> Any:
    try:
        return ctypes.CDLL(str(file)).motet_clients
    except (OSError, AttributeError) as e:
        raise CannotGenerate(f"the compiled steps cannot be loaded: {e}") from e


def built(text: str, folder: Path) -> Path:
    """The library of a text, from a folder or compiled into it now."""
    program = compiler()
    if program is None:
        raise CannotGenerate("no C++ compiler that works was found")
    header = HEADER.read_text()
    words = (text, header, version_of(program), processor(), *_OPTIONS)
    name = sha256("\x1f".join(words).encode()).hexdigest()[:40]
    place = folder / f"{name}.so"
    if not is_whole(place):
        try:
            compile_into(place, program, text.replace('#include "step_kernels.h"', header))
        except (OSError, subprocess.TimeoutExpired) as e:  # a full disk, for example
            raise CannotGenerate(f"{Path(program).name} did not finish: {e}") from e
    return place


def compile_into(place: Path, program: str, text: str) -> None:
    """Another process that compiles the same text at the same time puts the same file there."""
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        source, made = Path(folder) / "steps.cpp", Path(folder) / "steps.so"
        source.write_text(text)
        words = [program, *_OPTIONS, str(source), "-o", str(made)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LONGEST, check=False)
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
            raise CannotGenerate(f"{Path(program).name} failed: {first.strip()}")
        seal(made, place.name)
        os.replace(made, place)


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
