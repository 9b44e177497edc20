"""What every method ends in: a linear classifier on image features."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from slimprompt.errors import InputError
from slimprompt.training.evaluation import EvalSet


@dataclass(frozen=True)
class Head:
    """logits = scale · f Wᵀ + b for unit-length image features f (n_images, embed_dim).

    Parameters
    ----------
    class_names
        Names of the classes.
    weights
        W (n_classes, embed_dim); unit-length class features for methods on cosine similarity.
    scale
        Factor on the products.
    bias
        b (n_classes,), or None.
    """

    class_names: tuple[str, ...]
    weights: Tensor
    scale: float
    bias: Tensor | None = None

    def logits(self, features: Tensor) -> Tensor:
        """(n_images, n_classes)."""
        logits = self.scale * features @ self.weights.T.to(features.device)
        return logits if self.bias is None else logits + self.bias.to(features.device)

    def correct(self, eval_set: EvalSet) -> Tensor:
        """Whether each image of an eval set with the same classes is classified correctly, (n_images,)."""
        if eval_set.class_names != self.class_names:
            raise InputError("the eval set has other classes than the head")
        return self.logits(eval_set.features).argmax(1).cpu() == eval_set.labels.cpu()
