import pytest
import torch
from torch.nn import functional as F

from slimprompt import InputError
from slimprompt.methods.zero_shot import zero_shot_features
from slimprompt.training.evaluation import accuracy
from slimprompt.training.metrics import harmonic_mean

IMAGES = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0]])
TEXT = torch.tensor([[2.0, 0.0], [0.0, 5.0], [-0.1, 0.0]])


def test_accuracy_by_hand():
    assert accuracy(IMAGES, TEXT, torch.tensor([0, 1, 1, 2])) == 75.0
    with pytest.raises(InputError, match="no images"):
        accuracy(IMAGES[:0], TEXT, torch.tensor([]))


def test_harmonic_mean():
    assert harmonic_mean(50, 50) == 50
    assert harmonic_mean(90, 30) == 45
    assert harmonic_mean(0, 0) == 0


def test_zero_shot_templates_are_averaged_as_unit_vectors(tiny):
    one = zero_shot_features(tiny, ["red_fox", "cat"], ["a photo of a {}."])
    torch.testing.assert_close(one, tiny.encode_texts(["a photo of a red fox.", "a photo of a cat."]))
    both = zero_shot_features(tiny, ["cat"], ["a photo of a {}.", "{} texture."])
    expected = F.normalize(tiny.encode_texts(["a photo of a cat.", "cat texture."]).mean(0), dim=-1)
    torch.testing.assert_close(both[0], expected)


def test_a_template_needs_its_place(tiny):
    for template in ("a photo.", "{} or {}"):
        with pytest.raises(InputError, match="exactly one"):
            zero_shot_features(tiny, ["cat"], [template])
