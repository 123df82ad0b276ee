"""Train a small network on MNIST with TensorFlow: workers in step, parameter servers, or one process.

One process:
    python train.py

Two workers in step (MultiWorkerMirroredStrategy), each line in its own terminal:
    TF_CONFIG='{"cluster": {"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]},
                "task": {"type": "worker", "index": 0}}' python train.py
    TF_CONFIG='...                       the same, with "index": 1 ...' python train.py

As a job: this machine (with the Python that has TensorFlow), Amazon SageMaker, Azure Machine Learning. With job_ps.yaml
instead a chief, workers and parameter servers that do not wait for each other (ParameterServerStrategy):
    cloudtrain submit job.yaml --python PATH
    cloudtrain submit job.yaml --target sagemaker
    cloudtrain submit job.yaml --target azureml

Without MNIST in data/mnist (four idx files, or mnist.npz) it trains on 1,797 scans of handwritten digits that come with
scikit-learn, and says so.

Stop it with SIGTERM and run it again, with any number of workers: it continues from its last checkpoint.
"""

import importlib.util
import math
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

from cluster import join_cluster, serve
from mnist import Mnist, read_digits, read_mnist


@dataclass
class Config:
    epochs: int = 10
    # images per step of all workers together; with parameter servers, of one worker
    global_batch: int = 64
    # peak; rises over the first epoch, then falls to zero along a cosine
    learning_rate: float = 0.05
    momentum: float = 0.9
    channels: int = 16
    hidden: int = 64
    seed: int = 1
    deterministic: bool = True  # equal runs give equal losses; False: the fastest kernels
    report_every: int = 10  # steps
    checkpoint_every: int = 50  # steps
    step_delay: float = 0.0  # seconds of sleep after each step, to watch or interrupt a run


AT_LEAST = {
    "epochs": 0, "global_batch": 1, "channels": 1, "hidden": 1, "report_every": 1, "checkpoint_every": 1,
    "step_delay": 0,
}  # fmt: skip

config = runtime.arguments(Config, at_least=AT_LEAST)
if importlib.util.find_spec("tensorflow") is None:
    raise runtime.SetupError(
        f"there is no TensorFlow in `{sys.executable}`",
        hint="pip install tensorflow (or tensorflow-cpu), "
        "or name a Python that has it: `cloudtrain submit --python PATH`",
    )
job = join_cluster()  # before TensorFlow reads TF_CONFIG
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

is_main = runtime.detect_environment().is_main
cores = int(os.environ.get("OMP_NUM_THREADS", "0"))  # of this process; 0: all
tf.config.threading.set_intra_op_parallelism_threads(cores)

# How to train is what TF_CONFIG says. With parameter servers, workers and servers do nothing but
# what the chief asks.
has_servers = "ps" in job["cluster"]
if has_servers and "worker" not in job["cluster"]:
    raise runtime.SetupError(
        "the job has parameter servers and a chief, but no worker to which the chief can assign work",
        hint="start at least two workers",
    )
if has_servers and job["task"]["type"] != "chief":
    runtime.watch_for_stop()
    serve(job)
    sys.exit(0)
STRATEGIES = {
    "parameter_server": lambda: tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    ),
    "multi_worker_mirrored": tf.distribute.MultiWorkerMirroredStrategy,
    "mirrored": tf.distribute.MirroredStrategy,  # the GPUs of one process
    "none": tf.distribute.get_strategy,
}
several_gpus = len(tf.config.list_physical_devices("GPU")) > 1
method = "mirrored" if several_gpus else "none"
if job["cluster"]:
    method = "parameter_server" if has_servers else "multi_worker_mirrored"
strategy = STRATEGIES[method]()
runtime.watch_for_stop()  # not before: the strategy takes SIGTERM for itself
keras.utils.set_random_seed(config.seed)
if config.deterministic and not has_servers:
    tf.config.experimental.enable_op_determinism()


def load_images() -> Mnist:
    folder = Path("data", "mnist")
    with tempfile.TemporaryDirectory() as nothing:
        place = runtime.input_dir("mnist", default=folder if folder.exists() else nothing)
        if str(place) != nothing:
            return read_mnist(place)
    runtime.notice("no input `mnist`: training on handwritten digits that come with scikit-learn")
    return read_digits()


train, test, white = load_images()
steps_per_epoch = math.ceil(len(train.labels) / config.global_batch)
last_step = config.epochs * steps_per_epoch
test_parts = math.ceil(len(test.labels) / 1000)  # so many at once fit into any memory


# The data. What a step sees depends on seed and step alone, so that neither the number of workers
# nor an interruption changes what is learned. All of this is traced into graphs, which carry the
# images (as bytes) to whoever runs them.


def rows_at(step: tf.Tensor) -> tf.Tensor:
    """Return the training images of one step: a stretch of the epoch's permutation. Only that stretch is computed."""
    epoch, position = step // steps_per_epoch, step % steps_per_epoch
    start = position * config.global_batch
    places = tf.range(start, tf.minimum(start + config.global_batch, len(train.labels)))
    return tf.random.experimental.index_shuffle(places, [config.seed, epoch], len(train.labels) - 1)


def images_of(pixels: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.gather(pixels, rows), tf.float32) / white


def digits_of(labels: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.gather(labels, rows), tf.int32)


def share(
    step: tf.Tensor, number: tf.Tensor | int, count: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return images and labels of one of `count` replicas, and the number of images of all replicas together."""
    rows = rows_at(step)
    mine = rows[number::count]
    return images_of(train.pixels, mine), digits_of(train.labels, mine), tf.size(rows)


def shares_of_worker(first_step: int, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Return the shares of one worker, step after step: one for each of its replicas (its GPUs)."""
    replicas = context.num_replicas_in_sync // context.num_input_pipelines
    first = context.input_pipeline_id * replicas
    steps = tf.data.Dataset.range(first_step, last_step, output_type=tf.int32)
    pairs = steps.flat_map(
        lambda step: tf.data.Dataset.range(replicas, output_type=tf.int32).map(lambda r: (step, r))
    )
    shares = pairs.map(
        lambda step, replica: share(step, first + replica, context.num_replicas_in_sync)
    )
    return shares.prefetch(tf.data.AUTOTUNE)


# The network. Under a strategy's scope its variables are mirrored, or stand on the parameter
# servers.
with strategy.scope():
    network = keras.Sequential(
        [
            keras.layers.Input(train.pixels.shape[1:]),
            keras.layers.Conv2D(config.channels, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(config.hidden, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    learning_rate = keras.optimizers.schedules.CosineDecay(
        0.0,
        max(1, last_step - steps_per_epoch),
        warmup_target=config.learning_rate,
        warmup_steps=steps_per_epoch,
    )
    optimizer = keras.optimizers.SGD(learning_rate, config.momentum)
    optimizer.build(network.trainable_variables)


def learn(images: tf.Tensor, labels: tf.Tensor, batch_size: tf.Tensor) -> tf.Tensor:
    """Run one replica's part of a step. Keras adds up the gradients of all replicas, so each loss is a sum over its
    share, divided by the size of the whole batch. That is exact for every number of replicas, and for the short last
    batch."""
    with tf.GradientTape() as tape:
        logits = network(images, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_sum(losses) / tf.cast(batch_size, tf.float32)
    gradients = tape.gradient(loss, network.trainable_variables)
    optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
    return loss


def count_right(number: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Return how many test images are read correctly, of every `count`-th."""
    rows = tf.range(number, len(test.labels), count)
    found = tf.argmax(network(images_of(test.pixels, rows)), 1, output_type=tf.int32)
    return tf.reduce_sum(tf.cast(found == digits_of(test.labels, rows), tf.int32))


# Checkpoints. Every worker that trains in step takes part in a save, and what is not the chief's is
# thrown away. A checkpoint's name ends in its step (the optimizer's own count misses some where two
# workers add to it at once), and it counts when the file `checkpoint` names it, which is written
# last. Keras keeps the states of layers that draw, such as dropout, apart from what TensorFlow
# saves of a network.
drawing = [
    variable.value
    for variable in network.non_trainable_variables
    if "seed_generator" in variable.path
]
random = {"random": drawing} if drawing else {}
checkpoint = tf.train.Checkpoint(network=network, optimizer=optimizer, **random)
own_folder = tempfile.TemporaryDirectory()
folder = runtime.checkpoint_dir()
manager = tf.train.CheckpointManager(
    checkpoint, folder if is_main else own_folder.name, max_to_keep=runtime.Checkpoints().keep
)
# Parameter servers would write their parts themselves, into a folder that the chief need not see.
by_chief = tf.train.CheckpointOptions(experimental_io_device="/job:chief" if has_servers else None)
first_step = 0
if newest := tf.train.latest_checkpoint(str(folder)):
    checkpoint.restore(newest, by_chief).assert_consumed()
    first_step = int(newest.rpartition("-")[2])
    optimizer.iterations.assign(first_step)
    runtime.notice(f"resumed from step {first_step}")


def after(done: int, loss: float, accuracy: float | None) -> None:
    """After one or several steps, report, evaluate and save. Both training loops call it."""
    if done % config.report_every == 0 or has_servers:
        runtime.report(step=done, total=last_step, epoch=done / steps_per_epoch, loss=loss)
    if accuracy is not None:
        runtime.report(step=done, epoch=done // steps_per_epoch, test_accuracy=accuracy)
    if done % config.checkpoint_every == 0 or done == last_step:
        manager.save(done, options=by_chief)


# In step: all workers compute their share of one batch, add up the gradients, and go on together.


@tf.function
def step_together(batches: tf.distribute.DistributedIterator, stop: tf.Tensor) -> tf.Tensor:
    """Return the mean loss of the batch, and how many replicas were asked to stop, in one exchange."""

    def on_replica(*mine: tf.Tensor) -> tf.Tensor:
        return tf.stack([learn(*mine), stop])

    return strategy.reduce(
        tf.distribute.ReduceOp.SUM, strategy.run(on_replica, next(batches)), axis=None
    )


@tf.function
def count_together(part: tf.Tensor) -> tf.Tensor:
    def on_replica() -> tf.Tensor:
        me = tf.distribute.get_replica_context()
        count = me.num_replicas_in_sync
        return count_right(part * count + me.replica_id_in_sync_group, test_parts * count)

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(on_replica), axis=None)


@tf.function
def first_steps() -> tf.Tensor:
    """Return the step at which all replicas begin. With different steps they would wait for each other for ever."""
    return strategy.gather(strategy.run(lambda: tf.constant([first_step])), axis=0)


def accuracy_together() -> float:
    return sum(int(count_together(tf.constant(part))) for part in range(test_parts)) / len(
        test.labels
    )


def train_together() -> float:
    """Train with all workers in step. Return the test accuracy."""
    begins = first_steps().numpy().tolist()
    if len(set(begins)) > 1:
        raise runtime.SetupError(
            f"the workers resume from different steps: {begins}",
            hint="set `checkpoint` to a folder that all workers share",
        )
    shares = strategy.distribute_datasets_from_function(
        lambda context: shares_of_worker(first_step, context)
    )
    batches = iter(shares)
    for done in range(first_step + 1, last_step + 1):
        loss, votes = step_together(batches, tf.constant(float(runtime.should_stop()))).numpy()
        after(done, float(loss), None if done % steps_per_epoch else accuracy_together())
        time.sleep(config.step_delay)
        if votes and done < last_step:
            manager.save(done, options=by_chief)
            runtime.exit_preempted(done)
    return accuracy_together()


# Apart: the chief hands out steps, and each worker computes its step with the weights that it
# finds.


@tf.function
def step_alone(step: tf.Tensor) -> tf.Tensor:
    return strategy.run(learn, share(step, 0, 1))


@tf.function
def count_alone(part: tf.Tensor) -> tf.Tensor:
    return count_right(part, test_parts)


def train_apart() -> float:
    """Train with parameter servers. Return the test accuracy. No process waits for another between two checkpoints or
    ends of epochs."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def accuracy_apart() -> float:
        counts = [
            coordinator.schedule(count_alone, (tf.constant(part),)) for part in range(test_parts)
        ]
        return sum(coordinator.fetch(counts)) / len(test.labels)

    done = first_step
    while done < last_step:
        end = min(
            (done // every + 1) * every for every in (steps_per_epoch, config.checkpoint_every)
        )
        losses = []
        while done < min(end, last_step) and not runtime.should_stop():
            losses.append(coordinator.schedule(step_alone, (tf.constant(done),)))
            done += 1
            time.sleep(config.step_delay)
        coordinator.join()
        if losses:  # there are none when the stop came before the first step
            accuracy = None if done % steps_per_epoch else accuracy_apart()
            after(done, sum(coordinator.fetch(losses)) / len(losses), accuracy)
        if runtime.should_stop() and done < last_step:
            manager.save(done, options=by_chief)
            runtime.exit_preempted(done)
    return accuracy_apart()


started = time.perf_counter()
if is_main:
    print(f"strategy={method} replicas_in_step={strategy.num_replicas_in_sync}", flush=True)
accuracy = train_apart() if has_servers else train_together()
if is_main:
    network.save(runtime.model_dir() / "model.keras")
    seconds = time.perf_counter() - started
    print(f"test accuracy {accuracy:.4f} after {last_step} steps, {seconds:.1f} s", flush=True)
