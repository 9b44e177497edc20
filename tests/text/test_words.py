"""Words as context give the zero-shot classifier of their template."""

import pytest
import torch
from torch.nn import functional as F

from slimprompt import InputError, SharedPrefixTextEncoder
from slimprompt.text.reference import full_pass_encoder
from slimprompt.text.words import word_embeddings, words_template
from tests.text.conftest import NAMES

WORDS = ["a photo of a", "a blurry, black-and-white photo of the"]


@pytest.mark.parametrize("words", WORDS)
def test_rows_are_the_embeddings_of_the_tokens(tiny, words):
    _, *tokens, _ = tiny.tokenize(words)
    assert torch.equal(word_embeddings(tiny, words), tiny.text_tower.token_embedding.weight[tokens])
    assert torch.equal(word_embeddings(tiny, f" {words} "), word_embeddings(tiny, words))


@pytest.mark.parametrize("words", WORDS)
def test_full_pass_of_words_equals_their_template_bit_for_bit(tiny, words):
    context = word_embeddings(tiny, words)
    with torch.inference_mode():
        features = F.normalize(full_pass_encoder(tiny, NAMES, len(context))(context), dim=-1)
    texts = [words_template(words).replace("{}", name.replace("_", " ")) for name in NAMES]
    assert torch.equal(features, tiny.encode_texts(texts))


@pytest.mark.parametrize("words", WORDS)
def test_shared_prefix_of_words_equals_their_template(double, words):
    context = word_embeddings(double, words)
    features = F.normalize(SharedPrefixTextEncoder(double, NAMES, len(context))(context), dim=-1)
    full = F.normalize(full_pass_encoder(double, NAMES, len(context))(context), dim=-1)
    torch.testing.assert_close(features, full, rtol=1e-12, atol=1e-13)


def test_a_template_is_not_taken_for_words(tiny):
    with pytest.raises(InputError, match="'a photo of a {}.' hold {}: give only those before the class name"):
        word_embeddings(tiny, "a photo of a {}.")
