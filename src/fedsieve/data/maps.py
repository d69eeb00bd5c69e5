"""Facts about the classes of well-known data sets: which are confused, which belong together, which make a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CLASS_MAPS: Mapping[str, Mapping[int, int]] = {
    # truck -> automobile, bird -> airplane, deer -> horse, cat -> dog
    "cifar10": {9: 1, 2: 0, 4: 7, 3: 5},
    # the same, and dog -> cat
    "cifar10-two-way": {9: 1, 2: 0, 4: 7, 3: 5, 5: 3},
    "mnist": {2: 7, 3: 8, 5: 6, 6: 5, 7: 1},
}
"""Asymmetric noise: the class each source class is taken for."""

CIFAR100_SUPERCLASSES: Mapping[str, Sequence[int]] = {
    "aquatic mammals": (4, 30, 55, 72, 95),
    "fish": (1, 32, 67, 73, 91),
    "flowers": (54, 62, 70, 82, 92),
    "food containers": (9, 10, 16, 28, 61),
    "fruit and vegetables": (0, 51, 53, 57, 83),
    "household electrical devices": (22, 39, 40, 86, 87),
    "household furniture": (5, 20, 25, 84, 94),
    "insects": (6, 7, 14, 18, 24),
    "large carnivores": (3, 42, 43, 88, 97),
    "large man-made outdoor things": (12, 17, 37, 68, 76),
    "large natural outdoor scenes": (23, 33, 49, 60, 71),
    "large omnivores and herbivores": (15, 19, 21, 31, 38),
    "medium-sized mammals": (34, 63, 64, 66, 75),
    "non-insect invertebrates": (26, 45, 77, 79, 99),
    "people": (2, 11, 35, 46, 98),
    "reptiles": (27, 29, 44, 78, 93),
    "small mammals": (36, 50, 65, 74, 80),
    "trees": (47, 52, 56, 59, 96),
    "vehicles 1": (8, 13, 48, 58, 90),
    "vehicles 2": (41, 69, 81, 85, 89),
}
"""The fine classes of each coarse class. Fine ids are alphabetical, so consecutive ids do not share a coarse class."""

TASK_PRESETS: Mapping[str, Sequence[Sequence[int]]] = {
    "cifar10-2": ((0, 1, 8, 9), (2, 3, 4, 5, 6, 7)),
    "cifar10-3": ((0, 1, 8), (9, 2, 3), (4, 5, 6, 7)),
    "cifar10-5": ((0, 1), (8, 9), (2, 3), (4, 5), (6, 7)),
    "svhn-2": ((0, 2, 4, 6, 8), (1, 3, 5, 7, 9)),
    "svhn-3": ((0, 2, 4), (6, 8, 1), (3, 5, 7, 9)),
    "svhn-5": ((0, 2), (4, 6), (8, 1), (3, 5), (7, 9)),
}
"""The task tables of FB-NLL."""


def next_in_group(groups: Sequence[Sequence[int]]) -> dict[int, int]:
    """Each class to the next one of its group, the last to the first; a group of one class maps nothing."""
    return {
        group[i]: group[(i + 1) % len(group)]
        for group in map(list, groups)
        if len(group) > 1
        for i in range(len(group))
    }
