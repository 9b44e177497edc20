import torch

from slimprompt.text.kernels.block import FrozenBlock
from slimprompt.text.layout import block_layouts, default_chunk_size, group_sizes


def test_group_sizes_minimise_the_cost_of_groups_and_padding():
    lengths = [3] * 40 + [4] * 30 + [9]
    assert group_sizes(lengths, width=2048) == [40, 30, 1]  # in a wide tower padding costs more than groups
    assert group_sizes(lengths, width=32) == [71]  # in a narrow tower one group is cheapest
    assert sum(group_sizes(lengths, width=300)) == 71


def test_many_classes_are_divided_into_equal_chunks():
    assert default_chunk_size(5_305, 1_000, 512) == 1_000  # one chunk
    assert default_chunk_size(62_850, 10_000, 512) == 1_250  # eight chunks
    assert default_chunk_size(62_850, 10_000, 128) == 5_000  # a narrow tower allows larger chunks


def test_layouts_of_the_blocks(tiny):
    """Two prefix rows and suffixes of 2 and 3 rows: rows 3 and 6 are the end-of-text rows."""
    blocks = [FrozenBlock(block) for block in tiny.text_tower.transformer.resblocks]
    first, inner, last = block_layouts(
        blocks, torch.zeros(5, tiny.text_width), [2, 3], 2, has_prefix=True, constant_suffix=True
    )
    assert first.n_computed == 2
    assert first.constants[0].k.shape == (2, 6, 16)  # two heads, two suffixes padded to three rows
    assert inner.query_rows is None
    assert last.query_rows.tolist() == [3, 6]
    inf = float("inf")
    assert last.groups[0].mask.tolist() == [[0, 0, 0, 0, -inf], [0, 0, 0, 0, 0]]
