"""Seeds every random generator as Python begins.

lab/bench/started.py puts a copy on the program's path as sitecustomize.py, without LMS and with
it, where the program itself draws before it seeds: axolotl LoRA's first weights.
"""

import random

import numpy
import torch

random.seed(0)
numpy.random.seed(0)
torch.manual_seed(0)
