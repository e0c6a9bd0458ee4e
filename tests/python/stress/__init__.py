"""Programs that are run twice, in plain PyTorch and managed, and compared to the last bit."""
