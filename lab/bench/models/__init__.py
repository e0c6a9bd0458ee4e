"""The models of the benchmark steps, written from public facts about their architectures.

Parameter names follow the layouts that users know, where there is one, so that state dicts load.
Every model has a `checkpointing` attribute: when true, each of its blocks is recomputed in the
backward pass (`torch.utils.checkpoint`), which is the usual alternative to swapping.
"""
