from __future__ import annotations

import torch
from torch.nn import functional as F

from slimprompt.images.bank import train_view_name
from slimprompt.methods.zero_shot import zero_shot_features


def test_features_of_all_views_start_with_the_eval_view(make_task) -> None:
    task = make_task(3, 2, views=2)
    assert task.view_features.shape == (3, 6, 24)
    torch.testing.assert_close(task.view_features[0], task.bank.features(task.images), rtol=0, atol=0)
    second = task.bank.features(task.images, train_view_name(task.seed, 1))
    torch.testing.assert_close(task.view_features[2], second, rtol=0, atol=0)
    assert task.view_features is task.view_features  # read once
    assert task.targets.tolist() == list(task.labels) and task.shots == 2


def test_class_and_template_features(make_task) -> None:
    task = make_task(templates=("a photo of a {}.", "a drawing of a {}."))
    backbone = task.bank.backbone
    expected = zero_shot_features(backbone, task.class_names, task.templates)
    torch.testing.assert_close(task.class_features, expected, rtol=0, atol=0)
    assert task.template_features.shape == (2, 3, 24)
    drawing = backbone.encode_texts(["a drawing of a thing 2."])[0]
    torch.testing.assert_close(F.normalize(task.template_features[1, 2], dim=-1), drawing)
    assert not torch.allclose(task.template_features.norm(dim=-1), torch.ones(2, 3))  # as the model gives them
    (task.class_features.clone().requires_grad_() * task.class_features).sum().backward()  # usable in training
