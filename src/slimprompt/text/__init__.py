"""Class features from a learned context: tokens, encoder, reference passes and kernels."""
