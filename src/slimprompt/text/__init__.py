"""Class features from a learned context.

tokens      Token sequences of the prompts, `SOS context name . EOT`.
words       Token embeddings of words, for prompts that start from them.
reference   Plain PyTorch passes: open_clip's full pass, and the pass that computes the shared prefix once.
encoder     `SharedPrefixTextEncoder`, the fast pass that the rest of the package uses, and `encode_texts` for complete texts.
layout      Chunks of classes, and the rows that each transformer block reads and writes.
kernels     Hand-written forward and backward of a block; equal to `reference`, and faster.
"""
