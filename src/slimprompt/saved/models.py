"""Saved models of any kind: which one a folder holds, and its description."""

from __future__ import annotations

from pathlib import Path

from slimprompt.errors import InputError
from slimprompt.files import json_checksum
from slimprompt.hub import model_folder
from slimprompt.saved.files import Description, SavedFiles
from slimprompt.saved.head import HEAD_FILES, HeadDescription, read_head
from slimprompt.saved.prompt import PROMPT_FILES, PromptDescription, read_prompt


def saved_files(folder: Path) -> SavedFiles:
    """The kind of model that the folder holds, a head or a prompt; an `InputError` if it holds none."""
    for files in (HEAD_FILES, PROMPT_FILES):
        if files.is_saved(folder):
            return files
    expected = " or ".join(f"{files.description} and {files.tensors}" for files in (PROMPT_FILES, HEAD_FILES))
    raise InputError(f"no saved prompt or head at {folder}: expected {expected}, which `slimprompt fit` writes")


def read_description(folder: Path) -> PromptDescription | HeadDescription:
    """The description of a saved prompt or head; an `InputError` if the folder holds none or it is damaged."""
    return read_head(folder)[0] if saved_files(folder) is HEAD_FILES else read_prompt(folder).description


def model_digest(folder: str | Path) -> str:
    """Hash of a saved prompt or head: of its description, which holds the hash of its tensors."""
    folder = model_folder(folder)
    return json_checksum(saved_files(folder).read(folder, Description)[1])
