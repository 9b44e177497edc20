"""scikit-learn's conventions for a classifier, without importing scikit-learn, which would take longer than to classify an image."""

from __future__ import annotations

import inspect
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from slimprompt.errors import unknown

if TYPE_CHECKING:
    from typing_extensions import Self


class Estimator:
    """Parameters are the arguments of `__init__`, stored unchanged; what is learned has a name that ends in an underscore.

    This is what scikit-learn's `clone`, `Pipeline` and model selection ask of a classifier.
    """

    @classmethod
    def parameter_defaults(cls) -> dict[str, Any]:
        """The default of each parameter, sorted by name."""
        parameters = inspect.signature(cls.__init__).parameters
        return {name: parameters[name].default for name in sorted(parameters) if name != "self"}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name; `deep` makes no difference: parameters of an estimator in `continue_from` are not set from here."""
        return {name: getattr(self, name) for name in self.parameter_defaults()}

    def set_params(self, **params: Any) -> Self:
        """Change parameters; what was learned stays until the next `fit`."""
        for name, value in params.items():
            if name not in (known := self.parameter_defaults()):
                raise unknown(f"parameter of {type(self).__name__}", name, known)
            setattr(self, name, value)
        return self

    def check_fitted(self) -> None:
        """Raise scikit-learn's `NotFittedError` before `fit`."""
        if not any(name.endswith("_") and not name.startswith("__") for name in vars(self)):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(
                f"this {type(self).__name__} is not fitted yet: call `fit` first, or `load` a saved one"
            )

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            transformer_tags=TransformerTags(preserves_dtype=[]),
            input_tags=InputTags(two_d_array=False, string=True),  # images, not rows of numbers
        )

    def _repr_html_(self) -> str:
        """A table of the parameters that differ from their defaults, and of what is known after `fit`, for notebooks."""
        rows = {**self._given(), **self.summary()} or {"parameters": "all by default"}
        cells = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(_shown(value))}</td></tr>" for name, value in rows.items()
        )
        return f"<table><caption>{type(self).__name__}</caption>{cells}</table>"

    def summary(self) -> dict[str, Any]:
        """What is known after `fit`, for the display in notebooks."""
        return {}

    def _given(self) -> dict[str, Any]:
        defaults = self.parameter_defaults()
        return {name: value for name, value in self.get_params().items() if not _same(value, defaults[name])}

    def __repr__(self) -> str:
        """The parameters that differ from their defaults."""
        return f"{type(self).__name__}({', '.join(f'{name}={_shown(value)}' for name, value in self._given().items())})"


def _shown(value: Any) -> str:
    return f"{type(value).__name__}(…)" if isinstance(value, Estimator) else repr(value)


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(np.all(value == default)))
