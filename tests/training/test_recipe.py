import pytest

from slimprompt.training.recipe import RECIPES, Recipe


def test_describe():
    assert (
        Recipe().describe()
        == "200 epochs of SGD, batches of 32, learning rate 0.002, a new train view of each image every epoch"
    )
    fast = RECIPES["fast"].describe()
    assert fast.startswith(
        "20 epochs of AdamW, batches of 170, learning rate 0.005 (lower with fewer than 4 images per class), "
    )
    assert "the eval view and 1 train view of each image," in fast
    assert "the eval view and 2 train views of each image" in Recipe(views=2, all_views=True).describe()
    assert "rises by 10 %" in fast and "changes by less than 0.5 % over 5 epochs" in fast
    assert "all images in one step" in Recipe(batch_size=None).describe()
    assert "the eval view" in Recipe(views=0).describe() and "in turn" in Recipe(views=2).describe()


def test_learning_rate_by_images_per_class():
    recipe = Recipe(lr=0.005, lr_shots=4)
    scales = [recipe.lr_scale(images) for images in (1, 2, 2.5, 4, 16)]
    assert scales == pytest.approx([0.5, 0.5**0.5, 0.625**0.5, 1, 1])
    assert Recipe().lr_scale(1) == 1
    assert "learning rate 0.005 (lower with fewer than 4 images per class)" in recipe.describe()
