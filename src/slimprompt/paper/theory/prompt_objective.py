"""The training loss of a prompt in double precision, with its gradients and Gauss–Newton products."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slimprompt.clip.backbone import Backbone
from slimprompt.data import few_shot
from slimprompt.data.catalogue import open_dataset
from slimprompt.images.bank import FeatureBank
from slimprompt.paper.theory.objective import Product, difference_step
from slimprompt.text.encoder import SharedPrefixTextEncoder


class PromptObjective:
    """F(P) = mean over images i of −log softmax_c(s x_i·t̂_c(P))[y_i], P (n_ctx, width) as float64.

    t̂_c(P) is the unit-length text feature of class c with context P through a float64 copy of the text tower, x_i a row of
    the unit-length image features (n_images, embed_dim), y_i its label and s the logit scale.
    """

    lower_bound = 0.0  # cross-entropy is not negative
    on_pass: Callable[[], object] = staticmethod(lambda: None)
    """Called before each pass of the text tower, for a progress bar."""

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        image_features: Tensor,
        labels: Sequence[int],
        n_ctx: int,
    ) -> None:
        double = _in_double(backbone)
        self.shape = (n_ctx, backbone.text_width)
        self.n_examples = len(labels)
        self.title = f"{backbone.name}, {len(class_names)} classes, {len(labels)} images"
        self._device, self._scale = double.device, backbone.logit_scale
        self._images = image_features.to(self._device, torch.float64)  # (n_examples, embed_dim)
        self._labels = torch.tensor(list(labels), device=self._device)
        self._encode = SharedPrefixTextEncoder(double, class_names, n_ctx)

    def gradients(self, prompt: np.ndarray, groups: Sequence[np.ndarray | None]) -> tuple[float, list[np.ndarray]]:
        """F(P) over all images, and the gradient (m, d) of the mean loss of each group of images; None is all images.

        All groups share one forward pass.
        """
        with torch.set_grad_enabled(len(groups) > 0):
            leaf = self._leaf(prompt)
            losses = F.cross_entropy(self._logits(self._text(leaf)), self._labels, reduction="none")  # (n_examples,)
            found = []
            for index, group in enumerate(groups):
                chosen = losses if group is None else losses[torch.as_tensor(group, device=self._device)]
                (slope,) = torch.autograd.grad(chosen.mean(), leaf, retain_graph=index + 1 < len(groups))
                found.append(slope.cpu().numpy())
        return float(losses.detach().mean()), found

    def curvature(self, prompt: np.ndarray) -> Product:
        """The product V → Jᵀ S J V with J = ∂logits/∂P and the blocks (diag p_i − p_i p_iᵀ)/n of S.

        For cross-entropy this is the Fisher matrix. J V is a central difference of the text features; Jᵀ is an exact
        backward pass.
        """
        leaf = self._leaf(prompt)
        text = self._text(leaf)  # (n_classes, embed_dim)
        p = self._logits(text.detach()).softmax(-1)  # (n_examples, n_classes)
        h = difference_step(prompt)

        def product(direction: np.ndarray) -> np.ndarray:
            size = float(np.linalg.norm(direction))
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
        self.on_pass()
        return F.normalize(self._encode(context), dim=-1)

    def _logits(self, text: Tensor) -> Tensor:
        return self._scale * self._images @ text.T


def _in_double(backbone: Backbone) -> Backbone:
    """Copy the backbone to float64 without its image tower, which is not used here."""
    device = torch.device("cpu") if backbone.device.type == "mps" else backbone.device  # mps has no float64
    replaced: dict[int, object] = {id(backbone.model.visual): nn.Identity()}
    model = copy.deepcopy(backbone.model, replaced).to(device, torch.float64)
    return replace(backbone, model=model)


def few_shot_objective(
    backbone: Backbone, benchmark: str, *, shots: int, seed: int, n_ctx: int, data_root: Path | None = None
) -> PromptObjective:
    """F(P) on the eval views of a few-shot sample of a benchmark, or of a folder of images."""
    sample = few_shot(open_dataset(benchmark, data_root), shots, seed)
    paths = [sample.path(item) for item in sample.train]
    features = FeatureBank(backbone).features(paths, decode=sample.decode)
    return PromptObjective(backbone, sample.class_names, features, [item.label for item in sample.train], n_ctx)
