"""Train a small network on MNIST with TensorFlow's MultiWorkerMirroredStrategy.

    cloudtrain submit ../../tensorflow_mnist.yaml --target sagemaker

The workers find each other through TF_CONFIG, which every target sets.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path

from cloudtrain import runtime


@dataclass
class Config:
    epochs: int = 5
    batch: int = 256  # images per step and replica


config = runtime.arguments(Config)
runtime.apply_tf_config()  # SageMaker's TF_CONFIG is not quite what TensorFlow reads

import numpy as np  # noqa: E402 - after TF_CONFIG is right
import tensorflow as tf  # noqa: E402

strategy = tf.distribute.MultiWorkerMirroredStrategy()
folder = runtime.input_dir("train")


def read_bytes(name: str, header: int) -> np.ndarray:
    """What follows the header of an idx file: one byte for each pixel or label."""
    return np.frombuffer(gzip.decompress(Path(folder, name).read_bytes()), np.uint8, offset=header)


def dataset(part: str) -> tf.data.Dataset:
    """Batches for all replicas together; TensorFlow gives each worker its share."""
    images = read_bytes(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1).astype("float32") / 255
    labels = read_bytes(f"{part}-labels-idx1-ubyte.gz", 8).astype("int64")
    batch = config.batch * strategy.num_replicas_in_sync
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    pairs = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(10_000, seed=1)
    return pairs.batch(batch, drop_remainder=True).with_options(options)


with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])

model.fit(dataset("train"), epochs=config.epochs, verbose=2)
_, accuracy = model.evaluate(dataset("t10k"), verbose=0)
task = strategy.cluster_resolver
is_chief = task.task_type in (None, "chief", "master") or (task.task_type == "worker" and task.task_id == 0)
if is_chief:
    runtime.report(epoch=config.epochs, test_accuracy=accuracy)
    model.save(runtime.model_dir() / "model.keras")
else:  # every worker must save, because saving is a collective; only the chief's is kept
    model.save(runtime.output_dir("scratch") / f"worker-{task.task_id}.keras")
