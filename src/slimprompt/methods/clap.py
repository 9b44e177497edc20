"""CLAP: a zero-shot initialised linear probe that is held close to the text features.

loss = cross-entropy + mean_k λ_k ‖w_k − t_k‖², where λ_k is the mean zero-shot probability of class k on its own images: a class
that the zero-shot classifier already knows moves little.

Silva-Rodríguez et al., "A Closer Look at the Few-Shot Adaptation of Large Vision-Language Models" (CVPR 2024; jusiro/CLAP,
`trainers/adapters.py`, constraint "l2"). The settings are those of `zs_linear_probe`; nothing is chosen on validation images.
"""

from __future__ import annotations

from torch import Tensor

from slimprompt.methods.head import FittedHead
from slimprompt.methods.task import Task
from slimprompt.methods.zs_linear_probe import RECIPE, train_class_weights


def fit(task: Task, *, epochs: int = RECIPE.epochs) -> FittedHead:
    """Train the class weights of a task with the penalty."""
    task.require_every_class("clap")
    return train_class_weights(task, penalties(task), epochs=epochs)


def penalties(task: Task) -> Tensor:
    """λ (n_classes,): mean over the images of a class and their views of softmax(scale · f Tᵀ) at the class."""
    logits = task.bank.backbone.logit_scale * task.view_features @ task.class_features.T
    own = logits.softmax(-1).mean(0).gather(1, task.targets[:, None])[:, 0]  # (n_images,)
    sums = own.new_zeros(len(task.class_names)).index_add_(0, task.targets, own)
    return sums / task.targets.bincount(minlength=len(task.class_names))
