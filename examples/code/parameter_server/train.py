"""Train a small network on MNIST with TensorFlow's ParameterServerStrategy: asynchronous, workers do not wait.

    cloudtrain submit ../../parameter_server.yaml --target azureml

Parameter servers hold the variables, workers compute, and one coordinator, the chief, hands out the steps. Targets
differ in who is the chief: on this machine and on SageMaker it is a task of its own; Azure ML has workers and servers
only, so there the first worker takes the part.
"""

import gzip
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from cloudtrain import runtime


@dataclass
class Config:
    epochs: int = 5
    batch: int = 256  # images per step of one worker
    learning_rate: float = 0.1
    seed: int = 1


config = runtime.arguments(Config)
cluster_config = runtime.read_tf_config()
if cluster_config is None:
    raise SystemExit("error: there is no TF_CONFIG\n\nhint: submit examples/parameter_server.yaml")
cluster, task = cluster_config["cluster"], cluster_config["task"]
if "chief" not in cluster:
    cluster["chief"], *cluster["worker"] = [[cluster["worker"][0]], *cluster["worker"][1:]]
    if task["type"] == "worker":
        task.update(type="worker" if task["index"] else "chief", index=max(0, task["index"] - 1))
os.environ["TF_CONFIG"] = json.dumps(cluster_config)

import numpy as np  # noqa: E402 - after TF_CONFIG is right
import tensorflow as tf  # noqa: E402

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()


def chief_answers() -> bool:
    host, _, port = cluster["chief"][0].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def serve() -> None:
    """A worker or a parameter server: does what the chief says, as long as there is a chief."""
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    )
    patience = time.monotonic() + 600
    while not chief_answers() and time.monotonic() < patience:
        time.sleep(1)
    while chief_answers():
        time.sleep(1)


def read_bytes(name: str, header: int) -> np.ndarray:
    """What follows the header of an idx file: one byte for each pixel or label."""
    path = Path(runtime.input_dir("train"), name)
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def read_part(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images, (N, 784), 0 to 1, and labels, (N,)."""
    images = read_bytes(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype("float32") / 255
    return images, read_bytes(f"{part}-labels-idx1-ubyte.gz", 8).astype("int64")


def train() -> None:
    """The chief: makes the variables on the servers, and gives each worker that is free the next step."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        start = tf.random.stateless_normal
        variables = [
            tf.Variable(start((784, 256), (config.seed, 1)) * 0.05),
            tf.Variable(tf.zeros(256)),
            tf.Variable(start((256, 10), (config.seed, 2)) * 0.05),
            tf.Variable(tf.zeros(10)),
        ]

    def logits(images: tf.Tensor) -> tf.Tensor:
        hidden = tf.nn.relu(images @ variables[0] + variables[1])
        return hidden @ variables[2] + variables[3]

    def batches() -> tf.data.Dataset:
        """Every worker has all the data in an order of its own."""
        pairs = tf.data.Dataset.from_tensor_slices(read_part("train"))
        return pairs.shuffle(10_000).repeat().batch(config.batch)

    @tf.function
    def step(iterator: tf.data.Iterator) -> tf.Tensor:
        images, labels = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits(images))
            )
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(config.learning_rate * gradient)
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    steps = max(1, len(read_part("train")[1]) // config.batch)
    test_images, test_labels = read_part("t10k")
    for epoch in range(config.epochs):
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(steps)]
        coordinator.join()
        accuracy = float(np.mean(np.argmax(logits(test_images), 1) == test_labels))
        runtime.report(
            epoch=epoch + 1, loss=np.mean(coordinator.fetch(losses)), test_accuracy=accuracy
        )
    np.savez(runtime.model_dir() / "model.npz", *(variable.numpy() for variable in variables))


if resolver.task_type == "chief":
    train()
else:
    serve()
