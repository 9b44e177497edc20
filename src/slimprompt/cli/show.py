"""`slimprompt show`: what a saved model is."""

from __future__ import annotations

from slimprompt.cli.options import Model
from slimprompt.cli.printing import print_json


def show(model: Model) -> None:
    """Print the description in a saved model as JSON: method, classes, backbone, settings, recipe, calibration.

    Example: slimprompt show my-prompt
    """
    from slimprompt.saved import read_model

    print_json(read_model(model).entries)
