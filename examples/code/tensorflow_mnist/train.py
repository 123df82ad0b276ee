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


def read_part(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images, (N, 28, 28, 1), 0 to 1, and labels, (N,)."""
    images = (
        read_bytes(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1).astype("float32")
        / 255
    )
    return images, read_bytes(f"{part}-labels-idx1-ubyte.gz", 8).astype("int64")


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
    optimizer = tf.keras.optimizers.Adam()


def replica_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """One replica's share of a batch. The optimizer adds up the gradients of all replicas."""
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        share = loss / strategy.num_replicas_in_sync
    optimizer.apply_gradients(
        zip(tape.gradient(share, model.trainable_variables), model.trainable_variables, strict=True)
    )
    return loss


@tf.function
def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    losses = strategy.run(replica_step, args=(images, labels))
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)


# A loop of our own: `model.fit` of Keras 3 (TensorFlow 2.16 and later) fails with several workers.
batch = config.batch * strategy.num_replicas_in_sync
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
pairs = tf.data.Dataset.from_tensor_slices(read_part("train")).shuffle(10_000, seed=1)
batches = strategy.experimental_distribute_dataset(
    pairs.batch(batch, drop_remainder=True).with_options(options)
)
test_images, test_labels = read_part("t10k")
is_chief = runtime.detect_environment().is_main

for epoch in range(config.epochs):
    losses = [float(step(*pair)) for pair in batches]
    if is_chief:
        predicted = np.concatenate(
            [np.argmax(model(part), 1) for part in np.array_split(test_images, 10)]
        )
        accuracy = float(np.mean(predicted == test_labels))
        runtime.report(epoch=epoch + 1, loss=np.mean(losses), test_accuracy=accuracy)

if is_chief:
    model.save(runtime.model_dir() / "model.keras")
