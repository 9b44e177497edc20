"""The true objective of prompt learning in double precision, with its gradients and its Gauss–Newton products."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slimprompt.clip.backbone import Backbone
from slimprompt.data import few_shot
from slimprompt.data.catalogue import open_dataset
from slimprompt.errors import InputError
from slimprompt.images.bank import FeatureBank
from slimprompt.paper.theory.objective import difference_step
from slimprompt.text.encoder import SharedPrefixTextEncoder


class PromptObjective:
    """F(P) = mean over images i of −log softmax_c(s x_i·t̂_c(P))[y_i], P (n_ctx, width) as float64.

    t̂_c(P) is the unit-length text feature of class c under the context P, x_i a fixed unit-length image feature, s the
    frozen scale.
    """

    lower_bound = 0.0  # of a cross-entropy

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        image_features: Tensor,
        labels: Sequence[int],
        n_ctx: int,
    ) -> None:
        if not len(labels) or len(image_features) != len(labels):
            raise InputError(
                f"{len(image_features)} image features and {len(labels)} labels were given: "
                "each image needs its label, and at least one image is needed"
            )
        double = _in_double(backbone)
        self.shape = (n_ctx, backbone.text_width)
        self.n_examples = len(labels)
        self.title = f"{backbone.name}, {len(class_names)} classes, {len(labels)} images"
        self._device, self._scale = double.device, backbone.logit_scale
        self._images = image_features.to(self._device, torch.float64)  # (n_examples, embed_dim)
        self._labels = torch.tensor(list(labels), device=self._device)
        self._encode = SharedPrefixTextEncoder(double, class_names, n_ctx)

    def gradients(self, prompt: np.ndarray, groups: Sequence[np.ndarray | None]) -> tuple[float, list[np.ndarray]]:
        """F(P) over all images, and the gradient (m, d) of each group's mean loss; None is all images.

        The text pass is shared; each group costs one backward pass.
        """
        with torch.set_grad_enabled(len(groups) > 0):
            leaf = self._leaf(prompt)
            losses = F.cross_entropy(self._logits(self._text(leaf)), self._labels, reduction="none")  # (n_examples,)
            found = []
            for index, group in enumerate(groups):
                mine = losses if group is None else losses[torch.as_tensor(group, device=self._device)]
                (slope,) = torch.autograd.grad(mine.mean(), leaf, retain_graph=index + 1 < len(groups))
                found.append(slope.cpu().numpy())
        return float(losses.detach().mean()), found

    def curvature(self, prompt: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """V → Jᵀ S J V: J = ∂logits/∂P, S the blocks (diag p_i − p_i p_iᵀ)/n. With cross-entropy this is the Fisher matrix.

        J V is a central difference of the text features, Jᵀ an exact backward pass.
        """
        leaf = self._leaf(prompt)
        text = self._text(leaf)  # (n_classes, embed_dim)
        p = self._logits(text.detach()).softmax(-1)  # (n_examples, n_classes)
        h = difference_step(prompt)

        def product(direction: np.ndarray) -> np.ndarray:
            size = float(np.linalg.norm(direction))
            if size == 0:
                return np.zeros_like(direction)
            step = torch.tensor(direction * (h / size), device=self._device)
            with torch.no_grad():
                ahead, behind = self._text(torch.stack([leaf + step, leaf - step]))
                tangent = (ahead - behind) * (size / (2 * h))
                u = self._logits(tangent)  # J V
                u = p * (u - (p * u).sum(1, keepdim=True)) / self.n_examples  # S J V
                cotangent = self._scale * u.T @ self._images
            (result,) = torch.autograd.grad(text, leaf, cotangent, retain_graph=True)
            return np.asarray(result.cpu().numpy())

        return product

    def _leaf(self, prompt: np.ndarray) -> Tensor:
        return torch.tensor(prompt, dtype=torch.float64, device=self._device, requires_grad=True)

    def _text(self, context: Tensor) -> Tensor:
        return F.normalize(self._encode(context), dim=-1)

    def _logits(self, text: Tensor) -> Tensor:
        return self._scale * self._images @ text.T


class _DoubleBackbone(Backbone):
    @property
    def dtype(self) -> torch.dtype:
        return torch.float64


def _in_double(backbone: Backbone) -> Backbone:
    """The same text tower in float64; the image tower, which is not used here, is left out."""
    device = torch.device("cpu") if backbone.device.type == "mps" else backbone.device  # mps has no float64
    left_out: dict[int, object] = {id(backbone.model.visual): nn.Identity()}
    model = copy.deepcopy(backbone.model, left_out).to(device, torch.float64)
    given = {field.name: getattr(backbone, field.name) for field in fields(backbone)}
    return _DoubleBackbone(**given | {"model": model, "device": device})


def few_shot_objective(
    backbone: Backbone, benchmark: str, *, shots: int, seed: int, n_ctx: int, data_root: Path | None = None
) -> PromptObjective:
    """F(P) on the few-shot draw of a benchmark (a name, or a folder of images), each image in its test view."""
    draw = few_shot(open_dataset(benchmark, data_root), shots, seed)
    features = FeatureBank(backbone).features([draw.path(item) for item in draw.train])
    return PromptObjective(backbone, draw.class_names, features, [item.label for item in draw.train], n_ctx)
