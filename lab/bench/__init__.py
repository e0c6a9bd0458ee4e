"""The benchmark harness: training steps, ways to fit them into memory, and what they cost."""
