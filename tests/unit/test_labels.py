"""A client's table of labels."""

import pytest
import torch

from fedsieve.core.types import Labels, Role, payload_bytes

GIVEN = torch.tensor([2, -1, 0, 1])


def table():
    return Labels.of(GIVEN, 3)


def test_a_fresh_table_trains_towards_what_was_given():
    labels = table()
    assert labels.target.tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert labels.weight.tolist() == [1, 1, 1, 1]
    assert labels.role.tolist() == [Role.LABELLED, Role.UNLABELLED, Role.LABELLED, Role.LABELLED]
    assert bool(labels.score.isnan().all())
    assert len(labels) == 4
    assert not labels.is_judged()


def test_unlabelled_rows_are_trained_on_only_where_nothing_is_labelled():
    assert table().training_rows().tolist() == [0, 2, 3]
    assert Labels.of(torch.tensor([-1, -1]), 3).training_rows().tolist() == [0, 1]
    assert Labels.of(torch.empty(0, dtype=torch.int64), 3).training_rows().tolist() == []


def test_keep_drops_rows_and_leaves_the_original():
    labels = table()
    kept = labels.only(torch.tensor([True, True, False, False]), score=torch.tensor([0.9, 0.5, 0.1, 0.2]))
    assert kept.role.tolist() == [Role.LABELLED, Role.UNLABELLED, Role.DROPPED, Role.DROPPED]
    assert kept.weight.tolist() == [1, 1, 0, 0]
    assert kept.training_rows().tolist() == [0]
    assert kept.score.tolist() == pytest.approx([0.9, 0.5, 0.1, 0.2])
    assert kept.is_judged()
    assert torch.equal(kept.given, GIVEN)
    assert not labels.is_judged()
    assert labels.training_rows().tolist() == [0, 2, 3]


def test_keeping_twice_is_keeping_the_intersection():
    labels = table().only(torch.tensor([True, True, True, False])).only(torch.tensor([False, True, True, True]))
    assert labels.training_rows().tolist() == [2]
    assert labels.role.tolist()[0] == labels.role.tolist()[3] == Role.DROPPED


def test_nothing_kept_is_nothing_to_train_on():
    assert table().only(torch.zeros(4, dtype=torch.bool)).training_rows().tolist() == []


def test_towards_changes_the_target_alone():
    soft = torch.full((4, 3), 1 / 3)
    labels = table().towards(soft)
    assert torch.equal(labels.target, soft)
    assert torch.equal(labels.given, GIVEN)
    assert labels.training_rows().tolist() == [0, 2, 3]
    assert labels.is_judged()


def test_weights_take_rows_out():
    labels = table().replace(weight=torch.tensor([0.5, 1.0, 0.0, 2.0]))
    assert labels.training_rows().tolist() == [0, 3]
    assert labels.labelled_rows().tolist() == [0, 3]


def test_believed_labels_are_those_with_a_role_and_a_weight():
    labels = table()
    assert labels.labelled_rows().tolist() == [0, 2, 3]
    nobody = labels.replace(role=torch.full_like(labels.role, Role.UNLABELLED))
    assert nobody.labelled_rows().tolist() == []
    assert nobody.training_rows().tolist() == [0, 1, 2, 3], "where nothing is labelled, all rows with weight"


@pytest.mark.parametrize("rows", [torch.tensor([1, 3]), torch.tensor([False, True, False, True])])
def test_some_rows_are_renamed_and_rated(rows):
    labels = table().rename(rows, torch.tensor([2, 0])).rate(rows, torch.tensor([0.25, 0.75], dtype=torch.float64))
    assert labels.target.tolist() == [[0, 0, 1], [0, 0, 1], [1, 0, 0], [1, 0, 0]]
    assert labels.score.isnan().tolist() == [True, False, True, False]
    assert labels.score[[1, 3]].tolist() == [0.25, 0.75]
    assert torch.equal(labels.given, GIVEN)
    assert not table().is_judged(), "the old table stays as it is"


def test_a_payload_weighs_its_tensors_text_and_numbers():
    payload = {"x": torch.zeros(3, 2), "i": torch.zeros(5, dtype=torch.int64), "s": "näh", "f": 1.5, "b": True}
    assert payload_bytes(payload) == 24 + 40 + 4 + 8 + 8
