"""Provenance of a result: versions, machine, state of the code, and the memory that a run used."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from slimprompt import __version__
from slimprompt.lab.environment import RunEnvironment

_LIBRARIES = ("torch", "open_clip_torch", "torchvision", "numpy", "scikit-learn", "pillow", "safetensors")


@lru_cache
def versions() -> dict[str, str]:
    """Python, this package and the libraries that a result depends on."""
    found = {"python": platform.python_version(), "slimprompt": __version__}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a package"
    return found


@lru_cache
def machine() -> dict[str, Any]:
    """Name, system, processor, cores and memory of this machine."""
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
    }


def _processor() -> str:
    """Model name, which the standard library reports everywhere but on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def free_memory_gb() -> float:
    """Memory that new processes can use."""
    return float(psutil.virtual_memory().available / 2**30)


@lru_cache
def git_state() -> dict[str, Any] | None:
    """Commit of the package's own source, and whether it was changed since; None if it is not under git."""
    package = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # else it only happens to lie inside someone's repository
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return None


def origin(environment: RunEnvironment) -> dict[str, Any]:
    """The entries of a record that say how and where the run was executed."""
    return {
        "threads": environment.threads,
        "executor": environment.executor,
        "invocation": list(environment.invocation),
        "versions": versions(),
        "machine": machine(),
        "git": git_state(),
    }


class PeakMemory:
    """Peak memory in MB since this object was created: of the process, and of the GPU if there is one.

    Linux can reset the peak of a process; elsewhere it is the peak since the process began (`of` says which).
    """

    def __init__(self, device: str) -> None:
        import torch

        on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        self._cuda = torch.cuda if on_gpu else None
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            self.of = "run"
        except OSError:
            self.of = "process"
        if self._cuda:
            self._cuda.reset_peak_memory_stats()

    def facts(self) -> dict[str, Any]:
        """The entries of a record."""
        found: dict[str, Any] = {"peak_memory_mb": round(self._cpu_mb(), 1), "peak_memory_of": self.of}
        if self._cuda:
            found["peak_gpu_memory_mb"] = round(self._cuda.max_memory_allocated() / 2**20, 1)
        return found

    def _cpu_mb(self) -> float:
        if self.of == "run":
            lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
        if sys.platform == "win32":
            return float(psutil.Process().memory_info().peak_wset / 2**20)
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 1024)
