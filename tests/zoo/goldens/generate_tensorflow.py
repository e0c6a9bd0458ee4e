"""Golden numbers of reference models in TensorFlow 2.15, in float64: see README.md here.

generate_tensorflow.py googlenet FOLDER       a checkout of tensorflow/benchmarks
generate_tensorflow.py unet3d FOLDER CONTRIB  checkouts of ellisdg/3DUnetCNN, branch legacy, and
                                              keras-team/keras-contrib
"""

import importlib.util
import pathlib
import sys
import types

import numpy as np
import procedural
import tensorflow as tf

HERE = pathlib.Path(__file__).parent


def save(file, name, variants, shape, loss, output, gradients) -> None:
    """`gradients`: by name, in PyTorch's layout."""
    modules: dict[str, int] = {}
    for key, value in gradients.items():
        module = key.split(".")[0]
        modules[module] = modules.get(module, 0) + value.size
    numbers = {
        "model": name,
        "variants": variants,
        "type": "float64",
        "input": list(shape),
        "parameters": sum(modules.values()),
        "modules": modules,
        "loss": float(loss),
        "outputs": [procedural.summary(output)],
        "gradients": {k: procedural.gradient(k, v) for k, v in gradients.items()},
    }
    procedural.save(str(HERE / f"{file}.json"), numbers)
    print(file, numbers["parameters"], numbers["loss"])


def to_torch(values: np.ndarray) -> np.ndarray:
    """From TensorFlow's layout: kernels …×in×out, to out×in×…"""
    if values.ndim < 2:
        return values
    return np.ascontiguousarray(np.moveaxis(values, [-1, -2], [0, 1]))


def to_tensorflow(values: np.ndarray) -> np.ndarray:
    if values.ndim < 2:
        return values
    return np.ascontiguousarray(np.moveaxis(values, [0, 1], [-1, -2]))


def googlenet(folder: str) -> None:
    sys.path.insert(0, str(pathlib.Path(folder) / "scripts" / "tf_cnn_benchmarks"))
    from convnet_builder import ConvNetBuilder
    from models.googlenet_model import GooglenetModel

    names = ["conv1", "conv2", "conv3"]
    for stage, blocks in (("3", 2), ("4", 5), ("5", 2)):
        for block in range(blocks):
            for conv in ("conv1", "reduce3", "conv3", "reduce5", "conv5", "project"):
                names.append(f"inception{stage}.{block}.{conv}")
    names = [f"{n}.{kind}" for n in [*names, "fc"] for kind in ("weight", "bias")]

    def run(file, shape):
        v1 = tf.compat.v1
        with v1.Graph().as_default():
            pixels = procedural.picture(shape).astype(np.float64).transpose(0, 2, 3, 1)
            builder = ConvNetBuilder(
                tf.constant(pixels), 3, True, False, "NHWC", tf.float64, tf.float64
            )
            builder.apool = lambda *args, **kwargs: builder.spatial_mean()  # enlarged
            builder.counts["spatial_mean"] = 0
            GooglenetModel().add_inference(builder)
            logits = builder.affine(1001, activation="linear")
            target = procedural.classes(shape[0], 1001)
            loss = v1.losses.sparse_softmax_cross_entropy(target, logits)
            variables = v1.trainable_variables()
            assert len(variables) == len(names)
            gradients = v1.gradients(loss, variables)
            with v1.Session() as session:
                for name, variable in zip(names, variables, strict=True):
                    layout = to_torch(np.empty(variable.shape)).shape
                    values = to_tensorflow(procedural.parameter(name, layout))
                    variable.load(values.astype(np.float64), session)
                loss, logits, gradients = session.run([loss, logits, gradients])
        save(
            file,
            "googlenet",
            {},
            shape,
            loss,
            logits,
            {n: to_torch(g) for n, g in zip(names, gradients, strict=True)},
        )

    run("googlenet", (2, 3, 75, 60))


def keras_of_then(contrib: str) -> None:
    """Modules that Keras had in 2018, from today's; keras-contrib's layer."""
    import keras

    keras.backend.set_floatx("float64")
    # The operator takes its slope in float32.
    nn = sys.modules["keras.src.backend"].tf.nn
    nn.leaky_relu = lambda x, alpha: tf.where(x > 0, x, x * alpha)
    engine = types.ModuleType("keras.engine")
    engine.Input, engine.Model = keras.layers.Input, keras.models.Model
    merge = types.ModuleType("keras.layers.merge")
    merge.concatenate = keras.layers.concatenate
    sys.modules["keras.engine"], sys.modules["keras.layers.merge"] = engine, merge
    if not hasattr(keras.layers, "Deconvolution3D"):
        keras.layers.Deconvolution3D = keras.layers.Conv3DTranspose

    class InputSpec(keras.layers.InputSpec):
        pass

    keras.layers.InputSpec = InputSpec
    path = pathlib.Path(contrib) / "keras_contrib/layers/normalization/instancenormalization.py"
    source = path.read_text().replace("from keras.utils.generic_utils", "from keras.utils")
    source = source.replace("get_custom_objects().update", "(lambda *a: None)")
    module = types.ModuleType("keras_contrib.layers")
    spec = importlib.util.spec_from_loader("keras_contrib.layers", loader=None)
    module.__spec__ = spec
    exec(compile(source, "instancenormalization", "exec"), module.__dict__)
    sys.modules["keras_contrib"] = types.ModuleType("keras_contrib")
    sys.modules["keras_contrib.layers"] = module


def unet3d(folder: str, contrib: str) -> None:
    keras_of_then(contrib)
    sys.path.insert(0, folder)
    import keras
    from unet3d.metrics import weighted_dice_coefficient_loss
    from unet3d.model.isensee2017 import isensee2017_model

    layers = []
    for level in range(5):
        layers += [f"encoder{level}_{kind}" for kind in ("in", "context1", "context2")]
    for level in range(3, -1, -1):
        layers += [f"decoder{level}_{kind}" for kind in ("up", "local3", "local1")]
        layers += [f"head{level}"] if level < 3 else []

    def run(file, shape, variants, mirrored, contribs_norm):
        deviation = keras.backend.std
        if not contribs_norm:
            # It adds epsilon, 1e-3, to the deviation. Make that the root of variance + epsilon.
            def padded(values, axes, keepdims):
                variance = keras.backend.var(values, axes, keepdims)
                return tf.sqrt(variance + 1e-3) - 1e-3

            keras.backend.std = padded
        model = isensee2017_model(
            (None, *shape[1:])[1:],
            dropout_rate=0.0,
            n_labels=3,
            optimizer=lambda lr: keras.optimizers.SGD(lr),
        )

        def flip(values):
            axes = tuple(range(2, values.ndim))
            return np.ascontiguousarray(np.flip(values, axes)) if mirrored else values

        names = []
        variables = []
        convs = [x for x in model.layers if isinstance(x, keras.layers.Conv3D)]
        norms = [x for x in model.layers if type(x).__name__ == "InstanceNormalization"]
        # Layers are listed by depth: their names count in the order in which they were made.
        order = lambda x: int(x.name.rpartition("_")[2]) if x.name[-1].isdigit() else 0  # noqa: E731
        convs, norms = sorted(convs, key=order), sorted(norms, key=order)
        assert len(convs) == len(layers)
        for name, conv in zip(layers, convs, strict=True):
            prefix = name if name.startswith("head") else f"{name}.conv"
            names += [f"{prefix}.weight", f"{prefix}.bias"]
            variables += [conv.kernel, conv.bias]
            if not name.startswith("head"):
                norm = norms.pop(0)
                names += [f"{name}.weight", f"{name}.bias"]
                variables += [norm.gamma, norm.beta]
        assert not norms
        for name, variable in zip(names, variables, strict=True):
            layout = to_torch(np.empty(variable.shape)).shape
            values = flip(procedural.parameter(name, layout))
            variable.assign(to_tensorflow(values).astype(np.float64))

        pixels = flip(procedural.picture(shape).astype(np.float64))
        target_shape = (shape[0], 3, *shape[2:])
        target = flip(procedural.binary("labels", target_shape).astype(np.float64))

        @tf.function(jit_compile=True)  # the plain kernels take no channels first on a CPU
        def step(pixels, target):
            with tf.GradientTape() as tape:
                output = model(pixels, training=True)
                loss = 1.0 + weighted_dice_coefficient_loss(target, output)
            return loss, output, tape.gradient(loss, variables)

        loss, output, gradients = step(tf.constant(pixels), tf.constant(target))
        keras.backend.std = deviation
        save(
            file,
            "unet3d",
            variants,
            shape,
            loss.numpy(),
            flip(output.numpy()),
            {n: flip(to_torch(g.numpy())) for n, g in zip(names, gradients, strict=True)},
        )

    run("unet3d_released", (2, 4, 16, 32, 16), {"norm": "released", "padding": "same"}, False, True)
    run("unet3d", (2, 4, 16, 32, 16), {}, True, False)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
