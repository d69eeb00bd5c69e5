"""The table that helps to choose a method says what is true."""

from pathlib import Path

import pytest

from fedsieve.methods import METHODS
from fedsieve.testing import Contract
from fedsieve.testing.profile import method_table, profile

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "which-method.md"
JUDGES = [name for name in METHODS if profile(name).judges]


def test_the_page_has_the_table_as_it_is():
    assert PAGE.read_text(encoding="utf-8").endswith(f"\n\n{method_table().to_markdown()}"), (
        "print it with `fedsieve methods --table`"
    )


@pytest.mark.parametrize("name", JUDGES)
def test_who_judges_leaves_a_judgement_and_who_does_not_suggest_changes_no_label(name):
    told, tried = profile(name), Contract.of(name, {}).tried
    given = tried.trial.federation.given
    audits = {client: kept for client, kept in tried.kept.items() if client >= 0 and "judged/score" in kept}
    assert audits
    changed = sum(int((kept["judged/suggested"].numpy() != given[k]).sum()) for k, kept in audits.items())
    assert told.suggests or not changed


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "focus", "ifca"])
def test_who_does_not_judge_leaves_none(name):
    assert not profile(name).judges
    assert not any("judged/score" in kept for kept in Contract.of(name, {}).tried.kept.values())


def test_what_helps_is_told_beside_what_is_needed():
    told = profile("audit+focus")
    assert (told.needs, told.helped_by) == (("client labels", "server.clean"), ())
    assert profile("sieve").needed() == "client labels; server.clean helps"
    assert profile("focus").needed() == "client labels, server.clean"
    assert profile("simclr").needed() == "nothing"


def test_a_profile_by_hand():
    told = profile("fedrn")
    assert (told.judges, told.suggests, told.needs) == (True, False, ("client labels",))
    assert told.sends == ("accuracy", "probe")
    assert (told.models_down, told.models_up, told.nets) == (3, 1, 1), "its own model and two neighbours'"
    assert not told.secure_aggregation
    assert not told.talks
    assert profile("scaffold").secure_aggregation
    assert profile("oracle").needs == ("client labels", "true labels")
    assert profile("fixmatch").needs == ("server.noisy",)
    assert profile("fedcorr").suggests
    assert profile("fedcorr").talks
    assert profile("scaffold+focus").sends == ("dc", "local_loss")
