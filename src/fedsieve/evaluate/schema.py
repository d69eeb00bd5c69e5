"""What a run leaves behind, declared once: the names of its files and of its numbers, and what they mean.

Writers, readers, tables, the report and `docs/reference/metrics.md` all go by these.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class File(StrEnum):
    """In the folder of a run."""

    CONFIG = "config.yaml"
    FEDERATION = "federation.json"
    TRUTH = "truth.npz"
    METRICS = "metrics.jsonl"
    CLIENTS = "clients.jsonl"
    LABELS = "labels.csv"
    SUSPECTS = "suspects.npz"
    """What the report shows of the labels that are flagged."""
    SUMMARY = "summary.json"
    MODEL = "model.safetensors"
    EXHIBITS = "exhibits.npz"
    INSIDE = "inside.npz"
    NODES = "nodes.json"
    """Who is which client, where clients are nodes of Flower."""
    CHECKPOINT = "checkpoint"
    LOCK = ".lock"
    TRACKING = "tracking.json"
    REPORT = "report.html"


PROBE_ROWS = "probe_rows"
"""In metrics.jsonl and summary.json: the rows that probes learnt from."""
ASKED = "comparison.yaml"
"""In the folder of a comparison: the settings that it was last asked for."""
RESULTS = "results.jsonl"
"""In the folder of a comparison: a row a finished run."""
LABEL_COLUMNS = ("owner", "where", "given", "suggested", "score", "flagged", "method", "twin")
"""Of labels.csv."""
MOST_OWNERS, MOST_SHOWN = 10, 12
"""Whose suspicious labels a report shows, and how many of each."""
MOST_BYTES = 2 << 20
"""Of all pictures of them together; without them where shrunk ones are still larger, as strips may be."""
LAST = 10
"""Tests that the headline accuracy is the mean of."""


@dataclass(frozen=True)
class Metric:
    """A number of a run: its key, how it is shown, and which end of it is good."""

    name: str
    meaning: str
    """In metrics.jsonl."""
    kind: Literal["score", "watched", "label", "verdict", "amount", "count"] = "score"
    """What it comes from: a test, watched rows, the choice of labels, the verdict on clients; or it is summed up over
    rounds."""
    summary: Literal["last test", "last round", "mean", "sum"] | None = None
    """What summary.json has of it."""
    heading: str = ""
    """In a table; none where tables do not show it."""
    scale: float = 1.0
    decimals: int = 2
    higher_is_better: bool = True
    compared: bool = False
    """Whether a comparison shows it."""


METRICS = (
    Metric(
        "test_accuracy",
        "share of the test set that is classified rightly; with several groups, tasks, or one model per client, the "
        "mean over clients, each by the model of its group on the classes of its task",
        summary="last test",
        heading="Accuracy (%)",
        scale=100,
    ),
    Metric(
        "macro_f1",
        "mean F1 of the classes that occur or are predicted",
        summary="last test",
        heading="Macro F1 (%)",
        scale=100,
        compared=True,
    ),
    Metric(
        "balanced_accuracy",
        "mean recall of the classes that occur",
        summary="last test",
        heading="Balanced accuracy (%)",
        scale=100,
        compared=True,
    ),
    Metric(
        "validation_accuracy",
        "accuracy on the samples kept by `validation`, whose labels are right",
        summary="last test",
    ),
    Metric(
        "knn_accuracy",
        "only where a method trains no classifier: accuracy by nearest neighbours of the features ([probes](#probes))",
        summary="last test",
        heading="kNN accuracy (%)",
        scale=100,
    ),
    Metric(
        "linear_accuracy",
        "the same by a linear classifier on them",
        summary="last test",
        heading="Linear probe (%)",
        scale=100,
        compared=True,
    ),
    Metric(
        "feature_spread",
        "how far the directions of the features differ: 1 is everywhere, 0 is one direction for all, a collapse",
        summary="last test",
        heading="Feature spread",
        decimals=3,
    ),
    Metric(
        "feature_rank",
        "in how many directions the features vary (RankMe)",
        summary="last test",
        heading="Feature rank",
        decimals=1,
    ),
    Metric(
        "client_accuracy_mean",
        "mean over clients of the accuracy on each client's own true mix of classes, Σ_c share_c · recall_c",
    ),
    Metric("client_accuracy_std", "its standard deviation over clients", summary="last test"),
    Metric("client_accuracy_min", "the worst client", summary="last test"),
    Metric(
        "loss_right",
        "with `watch=true`: mean cross entropy of the tested model towards the given label, over watched training rows "
        "whose label is right ([watching](#watching))",
        "watched",
        summary="last test",
    ),
    Metric("loss_wrong", "the same over rows whose label is wrong", "watched", summary="last test"),
    Metric(
        "gradient_right",
        "with `watch=true`: mean norm of a row's own gradient of that cross entropy with respect to the classifier, "
        "over watched rows whose label is right",
        "watched",
        summary="last test",
    ),
    Metric("gradient_wrong", "the same over rows whose label is wrong", "watched", summary="last test"),
    Metric(
        "label_precision",
        "of the labels that were trained on, the share that is right; mean over the clients of the round",
        "label",
        summary="last round",
        heading="Label precision (%)",
        scale=100,
        compared=True,
    ),
    Metric(
        "label_recall",
        "of the right labels, the share that was trained on",
        "label",
        summary="last round",
        heading="Label recall (%)",
        scale=100,
        compared=True,
    ),
    Metric(
        "repair_precision",
        "share of the labels that a method changed which are now right; mean over this round's clients",
        "label",
        summary="last round",
        heading="Repair precision (%)",
        scale=100,
        compared=True,
    ),
    Metric(
        "repair_recall",
        "share of the wrong labels that it put right; mean over this round's clients",
        "label",
        summary="last round",
        heading="Repair recall (%)",
        scale=100,
        compared=True,
    ),
    Metric(
        "guess_accuracy",
        "of the labels that a method guessed, the share that is right; mean over this round's clients",
        "label",
        summary="last round",
        heading="Guesses right (%)",
        scale=100,
        compared=True,
    ),
    Metric(
        "guess_precision",
        "the same of the guesses that were trained on",
        "label",
        summary="last round",
        heading="Used guesses right (%)",
        scale=100,
        compared=True,
    ),
    Metric(
        "guess_share",
        "share of a client's rows whose guess was trained on",
        "label",
        summary="last round",
        heading="Guesses used (%)",
        scale=100,
        compared=True,
    ),
    Metric(
        "guess_entropy",
        "how evenly the guesses that were trained on spread over the classes, their entropy by its largest value: 1 is "
        "evenly, 0 is one class",
        "label",
        summary="last round",
        heading="Spread of guesses",
        decimals=3,
        compared=True,
    ),
    Metric(
        "client_noise_auc",
        "how well a method's client scores tell the noisier half of the clients from the cleaner: 1 is perfect, 0.5 is "
        "chance",
        "verdict",
        summary="last round",
        heading="Client noise AUC",
        decimals=3,
        compared=True,
    ),
    Metric(
        "client_noise_rank",
        "rank correlation of the scores of this round's clients with their share of right labels: 1 is the same order",
        "verdict",
        summary="mean",
    ),
    Metric(
        "clustering_ari",
        "how far the method's groups are the clients' tasks (adjusted Rand index): 1 is the same, 0 is chance; only "
        "where the partition has tasks and the method makes groups",
        "verdict",
        summary="last round",
        heading="Clustering (adjusted Rand index)",
        decimals=3,
        compared=True,
    ),
    Metric(
        "bytes_up",
        "bytes of models and payloads from clients to the server in this round",
        "amount",
        summary="sum",
        heading="Sent up (MB)",
        scale=1e-6,
        higher_is_better=False,
    ),
    Metric(
        "bytes_down",
        "the same, from the server to clients",
        "amount",
        summary="sum",
        heading="Sent down (MB)",
        scale=1e-6,
        higher_is_better=False,
    ),
    Metric(
        "bytes_talk",
        "of both, what conversations took: questions and answers outside training",
        "amount",
        summary="sum",
    ),
    Metric(
        "seconds",
        "wall-clock time of the round; saving is booked to the next",
        "amount",
        summary="sum",
        heading="Time (s)",
        decimals=1,
        higher_is_better=False,
    ),
    Metric("reports", "clients whose model came back", "count"),
    Metric("refused", "reports that were not let in; `clients.jsonl` says why", "count"),
    Metric(
        "dropped",
        "clients that never reported: simulated by `dropout`, or nodes of Flower that did not reply",
        "count",
    ),
    Metric("skipped", "clients that had nothing to train on", "count"),
)
"""Of every round, in the order of metrics.jsonl. The clients that are counted have a row each in clients.jsonl."""
DERIVED = (
    Metric(
        "test_accuracy_last10",
        "mean of the last ten tests (of all, if there were fewer) but for `extra` rounds; compare methods by this",
        heading="Accuracy, last 10 (%)",
        scale=100,
        compared=True,
    ),
    Metric(
        "test_accuracy_best",
        "best of all tests; it chooses the round by the test set, so it is optimistic",
        heading="Best of test (%)",
        scale=100,
        compared=True,
    ),
    Metric("tests_in_mean", "how many tests that mean is of: ten, or all if there were fewer", decimals=0),
    Metric("worst_client", "", heading="Worst client (%)", scale=100),
    Metric("peak_memory_mb", "", heading="Peak memory (MB)", decimals=0, higher_is_better=False),
)
"""Of a whole run: what summary.json has besides, and what the report makes of it."""


def names(*kinds: str) -> tuple[str, ...]:
    """The metrics of a round that are of these kinds."""
    return tuple(metric.name for metric in METRICS if metric.kind in kinds)


def last_tests(*counts: int) -> str:
    """What the headline accuracy is of: of so many tests, in runs that may differ."""
    if {*counts} == {1}:
        return "the last test"
    return f"the mean of the last {'–'.join(map(str, sorted({min(counts), max(counts)})))} tests"
