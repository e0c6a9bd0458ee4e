"""Keras 3 on PyTorch: python keras_fit.py [LIMIT]"""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy

from torch_lms.integrations.keras import LmsCallback

callbacks = [LmsCallback(limit=sys.argv[1])] if sys.argv[1:] else []  # before the model is made

keras.utils.set_random_seed(0)
layers = [keras.layers.Dense(width) for width in (2048, 512, 2048, 512, 2048, 512)]
model = keras.Sequential([keras.Input((512,)), *layers])
model.compile(optimizer=keras.optimizers.AdamW(1e-4), loss="mse")
data = numpy.random.default_rng(0).standard_normal((8 * 128, 512), dtype="float32")
history = model.fit(data, data, batch_size=128, epochs=3, shuffle=False, callbacks=callbacks)
for name, values in history.history.items():
    print(name, values)
