"""Random PyTorch programs, run plainly and under LMS, and held against each other bit by bit."""
