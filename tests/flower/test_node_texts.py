"""Nodes with CSV files of texts: the column is their own, how texts become numbers is the run's."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from grid_here import GridHere

from fedsieve.base.errors import ConfigError, DataError, FedSieveError
from fedsieve.flower.briefing import Briefing
from fedsieve.flower.deployment import serve
from fedsieve.flower.vetting import vet
from fedsieve.flower.weights import held_weights
from fedsieve.report.progress import Progress
from fedsieve.settings.config import resolve
from fedsieve.settings.weights import weight_hashes

WORDS = {"sport": ["a goal", "the cup", "two teams", "a match"], "weather": ["rain", "some sun", "wind", "a storm"]}
KEYS = {"data.text": "title", "data.text_features": "ngrams:64", "model": "linear", "clients": 2, "rounds": 4}
KEYS |= {"epochs": 1, "flower.wait": 0.1, "flower.timeout": 5, "method": "fedavg"}


@pytest.fixture
def places(tmp_path):
    for name, column in (("server", "title"), ("a", "headline"), ("b", "title")):
        lines = [f"{text} {i},{topic}" for i in range(5) for topic, texts in WORDS.items() for text in texts]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"{column},label", *lines]))
    nodes = {
        node: {"data": str(tmp_path / f"{name}.csv"), "text": column, "state": str(tmp_path / f"state-{name}")}
        for node, name, column in ((1, "a", "headline"), (2, "b", "title"))
    }
    return tmp_path, nodes


def served(folder, nodes, **more):
    return serve(
        GridHere(nodes), {**KEYS, **more, "data": str(folder / "server.csv"), "out": str(folder / "run")}, Progress()
    )


def test_nodes_learn_from_their_own_texts(places):
    folder, nodes = places
    assert served(folder, nodes)["test_accuracy"] > 0.8


def test_a_node_that_reads_its_texts_in_no_way_is_named(places):
    folder, nodes = places
    del nodes[1]["text"]
    with pytest.raises(FedSieveError, match="node"):
        served(folder, nodes)


def test_a_message_names_no_encoder_from_elsewhere_and_no_column():
    flat = resolve({**KEYS, "runtime": "flower", "data": "titles.csv"}).flat()
    config = vet(flat, {"text": "mine"})
    assert (config.data().text, config.data().text_features) == ("mine", "ngrams:64")
    assert vet(flat, {}).data().text is None
    for name in ("hf:nobody/trap", "hf:~/secrets", "ngrams:1", "anything"):
        with pytest.raises(ConfigError, match=r"data\.text_features.*FS228"):
            vet({**flat, "data.text_features": name}, {"text": "mine"})
    allowed = vet({**flat, "data.text_features": "hf:ours"}, {"text": "mine", "allow": "hf:ours"})
    assert allowed.data().text_features == "hf:ours"


def test_encoders_of_texts_are_compared_with_the_servers(monkeypatch):
    config = resolve({**KEYS, "runtime": "flower", "data": "titles.csv", "data.text_features": "minilm"})
    monkeypatch.setattr("fedsieve.data.texts.text_map", lambda name: SimpleNamespace(key="ab" * 16))
    assert weight_hashes(config) == {"data.text_features": "ab" * 16}
    assert weight_hashes(resolve({**KEYS, "runtime": "flower", "data": "titles.csv"})) == {}
    told = Briefing(config.flat(), 0, weights=weight_hashes(config))
    assert held_weights({}, Path("state"), told) == {"data.text_features": "ab" * 16}
    trap = Briefing(config.flat() | {"data.text_features": "hf:trap"}, 0, weights=weight_hashes(config))
    with pytest.raises(ConfigError, match=r"hf:trap.*FS228"):
        held_weights({}, Path("state"), trap)


def test_a_package_that_a_node_lacks_is_told_before_round_1(places, monkeypatch):
    folder, nodes = places
    monkeypatch.setattr("fedsieve.data.packaged.find_spec", lambda _: None)
    with pytest.raises((ConfigError, DataError), match="FS008"):
        served(folder, nodes, **{"data.text_features": "minilm"})
