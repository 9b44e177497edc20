"""Imports what commands, worker processes and the service use, and computes nothing: processes are forked from one that has this."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from functools import cache

from slimprompt.startup import import_lightly
from tests.shortcuts import copy_rendered_benchmarks, do_not_wait_for_the_disk, read_vocabulary_once


def load_libraries() -> None:
    """Before commands are forked; what is made here once does not change by use."""
    import_lightly()
    from slimprompt.cli import app  # isort: skip  # before open_clip: it leaves out what commands do not use

    import matplotlib.figure
    import matplotlib.font_manager  # noqa: F401
    import pandas  # noqa: F401
    import scipy.optimize  # noqa: F401
    import sklearn.linear_model  # noqa: F401
    import typer.main

    import slimprompt.clip.backbone
    import slimprompt.collections.inputs
    import slimprompt.fit
    import slimprompt.lab.plan
    import slimprompt.lab.study
    import slimprompt.report.page
    import slimprompt.training.loop
    from slimprompt.lab.provenance import git_state, machine, versions

    with suppress(ImportError):  # an extra
        import slimprompt.service.app
        import slimprompt.service.server  # noqa: F401
    read_vocabulary_once()
    typer.main.get_command = cache(typer.main.get_command)
    typer.main.get_command(app)
    for find in (versions, machine, git_state):  # the facts about the machine that every record of a run has
        find()


if os.environ.get("SLIMPROMPT_TESTS_FORK_SERVER"):  # of which this is the preloaded module
    do_not_wait_for_the_disk()
    copy_rendered_benchmarks()
    load_libraries()
    gc.collect()
    gc.freeze()  # a collection in a fork would read, and so copy, all objects of the libraries
