import pytest

from slimprompt import InputError
from slimprompt.text.tokens import prompt_tokens, shared_prefix_length


def test_tokens_equal_those_of_coop(tiny):
    """`SOS ctx name . EOT`, with the tokens of the name as in 'X X X X name.', which is how CoOp obtains them."""
    (tokens,) = prompt_tokens(tiny, ["Oxford_Blue cat"], 4)
    whole = tiny.tokenize("X X X X Oxford Blue cat.")
    assert tokens == [whole[0], -1, -1, -1, -1, *whole[5:]]
    (middle,) = prompt_tokens(tiny, ["Oxford_Blue cat"], 4, "middle")
    assert middle == [whole[0], -1, -1, *whole[5:8], -1, -1, *whole[8:]]
    (front,) = prompt_tokens(tiny, ["Oxford_Blue cat"], 4, "front")
    assert front == [whole[0], *whole[5:8], -1, -1, -1, -1, *whole[8:]]


def test_error_names_the_class_name_that_is_too_long(tiny):
    with pytest.raises(InputError, match=r"'word word.*makes 69 tokens and .* reads at most 40"):
        prompt_tokens(tiny, ["cat", "word " * 50], 16)


@pytest.mark.parametrize(("position", "length"), [("end", 5), ("middle", 3), ("front", 1)])
def test_shared_prefix_is_the_start_token_and_the_context_before_the_name(tiny, position, length):
    assert shared_prefix_length(prompt_tokens(tiny, ["cat", "red fox"], 4, position)) == length
