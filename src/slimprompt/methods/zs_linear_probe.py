"""Zero-shot initialised linear probe: class weights that start at the zero-shot class features.

logits = scale · cos(f, w_k), with w_k trained by cross-entropy from the text feature t_k. t_k is the mean over the templates
of the text features as the model gives them, not scaled to unit length: their length sets the size of a step.

Settings of Silva-Rodríguez et al. (CVPR 2024; jusiro/CLAP, `SGD_lr1e-1_B256_ep300.yaml`): 300 epochs of SGD with momentum 0.9,
learning rate 0.1 with a cosine schedule after one epoch at 1e-5, batches of 256 views, no weight decay. They use 20 train
views of each image; here it is the eval view and the train views of the task.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from slimprompt.methods.descent import minimise, pooled_views
from slimprompt.methods.head import FittedHead, Head
from slimprompt.methods.task import Task
from slimprompt.training.optimizers import SGD
from slimprompt.training.recipe import Recipe

RECIPE = Recipe(epochs=300, batch_size=256, optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=0.0)


def fit(task: Task, *, epochs: int = RECIPE.epochs) -> FittedHead:
    """Train the class weights of a task from its zero-shot classifier."""
    return train_class_weights(task, epochs=epochs)


def train_class_weights(task: Task, penalty: Tensor | None = None, *, epochs: int = RECIPE.epochs) -> FittedHead:
    """Minimise cross-entropy + mean_k λ_k ‖w_k − t_k‖² over W (n_classes, embed_dim), starting at W = T."""
    scale, start = task.bank.backbone.logit_scale, task.template_features.mean(0)  # (n_classes, embed_dim)
    weights = start.clone().requires_grad_()
    recipe = RECIPE.model_copy(update={"epochs": epochs})

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        value = F.cross_entropy(scale * features @ F.normalize(weights, dim=-1).T, labels)
        return value if penalty is None else value + (penalty * (weights - start).square().sum(1)).mean()

    optimizer = SGD([weights], momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    minimise(loss, optimizer, pooled_views(task, epochs, recipe.batch_size or len(task.labels), recipe.lr_at))
    head = Head(task.class_names, F.normalize(weights.detach(), dim=-1), scale)
    return FittedHead(head, weights.numel())
