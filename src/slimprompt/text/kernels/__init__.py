"""Hand-written forward and backward of a frozen transformer block over a shared prefix.

rows        `RowGather`: between a matrix of rows and padded groups of sequences, split into heads.
attention   Attention of one group of sequences to the prefix and to themselves.
block       A whole block as one autograd function.

They compute what `slimprompt.text.reference` does, with fewer operations:

- The prefix is never copied per class: the queries of all classes meet its keys in one product per head.
- Only attention pads the sequences; all products with weights run on unpadded rows.
- Queries, keys and values are one product and one gather, except in the last block.
- Weights are frozen, so the backward pass computes gradients of activations only, and scalings are part of the neighbouring
  operations. Products with weights call oneDNN where it is available (`slimprompt.clip.products`), packed in training.
- Queries, keys and values of constant rows are computed once (first block), and only the end-of-text rows continue
  after the attention of the last block.

Shapes in comments use these letters:

    b   n_prompts · n_heads              n   sequences in a group
    p   prefix tokens                    t   padded length of the sequences of a group
    e   head_dim                         a   query rows per sequence (t, or 1 if only the last row is a query)
"""
