import pytest

from slimprompt.errors import InputError
from slimprompt.training.recipe import RECIPES, Recipe, auto_recipe, make_recipe


@pytest.mark.parametrize("n_images", [5, 24, 32, 47, 100, 752, 1600])
def test_paper_10x_moves_as_far_as_paper_in_a_tenth_of_the_steps(n_images):
    paper, coarse = RECIPES["paper"], RECIPES["paper-10x"]
    assert coarse.steps(n_images) == paper.steps(n_images) / 10
    rates = [
        sum(recipe.lr_at(epoch) / (1 - recipe.momentum) for epoch in range(recipe.epochs)) for recipe in (coarse, paper)
    ]
    assert rates[0] == pytest.approx(rates[1], rel=0.06)


@pytest.mark.parametrize("shots", [1, 1.5, 2, 3, 4, 5, 7, 8, 12, 16])
def test_auto_takes_the_steps_of_paper_10x_on_a_bounded_number_of_views(shots):
    recipe, n_classes = auto_recipe(shots), 60
    assert recipe.steps(int(shots * n_classes)) == RECIPES["paper-10x"].steps(int(shots * n_classes))
    assert 32 <= shots * len(recipe.views_at(0)) <= 48
    assert auto_recipe(1) == RECIPES["paper-10x"] == auto_recipe(0.5)


@pytest.mark.parametrize("views", [0, 1, 2, 10])
def test_auto_takes_as_many_steps_with_another_number_of_views(views):
    given = make_recipe("auto", 16, {"views": views, "epochs": 5})
    assert (given.views, given.steps(320)) == (views, 5 * 10)
    assert make_recipe({"views": views, "batch_size": 7}, 16).batch_size == 7


def test_auto_with_many_images_uses_two_views_of_each():
    many = auto_recipe(16)
    assert many == auto_recipe(100) == make_recipe("auto", 16)
    assert many.views_at(0) == [None, 0]
    assert make_recipe({"epochs": 5}, 16) == make_recipe(many, 1, {"epochs": 5})


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(
        InputError, match=r"^this recipe cannot be used: optimizer: .*'sgd' or 'adamw' \(given: 'adam'\)$"
    ):
        make_recipe("fast", 16, {"optimizer": "adam"})
    with pytest.raises(ValueError, match="'sgd' or 'adamw'"):
        Recipe(optimizer="adam")
