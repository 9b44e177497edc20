"""Packages that are missing or do not fit together: which extra installs them, and one clear line that says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec

from slimprompt.errors import InputError

#: Extra → the packages that slimprompt imports from it; `pyproject.toml` lists the same under their names on the index.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "lab": ("pandas", "openpyxl", "matplotlib"),
    "ray": ("ray", "pyarrow"),
    "hf": ("transformers", "sentencepiece"),
    "video": ("av",),
    "parquet": ("pyarrow",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "serve": ("fastapi", "uvicorn", "python_multipart"),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
}


def missing_packages(extra: str) -> list[str]:
    """Packages of an extra that are not installed."""
    return [package for package in EXTRAS[extra] if find_spec(package) is None]


def require_extra(extra: str, purpose: str) -> None:
    """Raise an `InputError` unless the packages of an extra are installed; `purpose` ("the report page") is what needs them."""
    if missing := missing_packages(extra):
        raise InputError(f"{purpose} needs {', '.join(missing)}: pip install 'slimprompt[{extra}]'")


def explain_missing(error: ModuleNotFoundError) -> str | None:
    """The message for an import that failed because an extra is not installed, or None for any other import.

    >>> explain_missing(ModuleNotFoundError("No module named 'pandas.core'", name="pandas.core"))
    "this command needs the package pandas: pip install 'slimprompt[lab]'"
    """
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    return extra and f"this command needs the package {package}: pip install 'slimprompt[{extra}]'"


def explain_mismatch(error: RuntimeError) -> str | None:
    """The message for an import of torchvision that failed because it was built for another torch, or None for any other error."""
    if not str(error).startswith("operator torchvision::"):
        return None
    return (
        f"torch {version('torch')} and torchvision {version('torchvision')} do not fit together, for instance because only one of "
        "them is a build without CUDA: install both with one command, as pytorch.org shows for your system"
    )
