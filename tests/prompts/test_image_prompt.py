"""Prompts of the image tower: their spec, their start and their numbers."""

from __future__ import annotations

import pytest

from slimprompt.errors import InputError
from slimprompt.prompts.spec import make_spec


def test_defaults() -> None:
    assert make_spec().n_ctx_image is None
    both = make_spec(tower="both")
    assert (both.n_ctx, both.n_ctx_image, both.words) == (16, 8, None)
    image = make_spec(tower="image", image_blocks="9:12")
    assert (image.n_ctx, image.n_ctx_image, image.words) == (None, 8, "a photo of a")
    assert make_spec(tower="both", share_basis=True).n_ctx_image == 16


@pytest.mark.parametrize(
    "fields",
    [
        {"n_ctx_image": 4},
        {"image_blocks": "0:2"},
        {"tower": "image", "share_basis": True},
        {"tower": "both", "share_basis": True, "n_ctx": 4, "n_ctx_image": 8},
        {"tower": "both", "n_ctx_image": 2},  # below the rank
        {"tower": "image", "image_blocks": "3:3"},
        {"tower": "image", "image_blocks": "4"},
        {"tower": "image", "depth": 2},
        {"tower": "image", "anchored": True},
        {"tower": "both", "basis": "learned"},
    ],
    ids=str,
)
def test_fields_that_do_not_fit(fields: dict[str, object]) -> None:
    with pytest.raises(InputError):
        make_spec(**fields)
