"""The program ``lms`` of the Python package. It imports neither PyTorch nor torch_lms before a
command needs them."""
