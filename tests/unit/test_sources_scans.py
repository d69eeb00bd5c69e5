"""Pictures of more than 256 levels: 16-bit scans and DICOM."""

import sys

import numpy as np
import pytest
from PIL import Image

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.sources import DataOptions, dicom, load_source
from fedsieve.settings.config import resolve
from fedsieve.settings.splitting import federation_of

pydicom = pytest.importorskip("pydicom")


def scans(folder, make, suffix, count=4):
    """Classes a and b, each with pictures of its own, and a test set."""
    for k, name in enumerate(("a", "b")):
        for part in ("c", "test"):
            (folder / part / name).mkdir(parents=True)
            for i in range(count):
                make(folder / part / name / f"{i}{suffix}", np.full((4, 4), 1000 * k + 100 * i, np.uint16))


def as_png(path, values):
    Image.fromarray(values).save(path)


def as_dicom(path, values, photometric="MONOCHROME2", slope=None, frames=None):
    data = pydicom.Dataset()
    data.PatientName, data.PatientID, data.PatientBirthDate = "Doe^Jane", "42", "19700101"
    coloured = photometric == "RGB"
    data.Rows, data.Columns = values.shape[:2] if coloured else values.shape[-2:]
    data.SamplesPerPixel, data.PhotometricInterpretation = 3 if coloured else 1, photometric
    data.BitsAllocated, data.BitsStored, data.HighBit = (8, 8, 7) if coloured else (16, 12, 11)
    data.PixelRepresentation = 0
    if coloured:
        data.PlanarConfiguration = 0
    if slope:
        data.RescaleSlope, data.RescaleIntercept = slope
    if frames:
        data.NumberOfFrames = frames
    data.PixelData = values.astype(np.uint8 if coloured else np.uint16).tobytes()
    data.SOPClassUID, data.SOPInstanceUID = pydicom.uid.CTImageStorage, pydicom.uid.generate_uid()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.save_as(path, enforce_file_format=True)


def test_twelve_bits_keep_their_range(tmp_path):
    """Values 0 to 1300: by their upper eight bits they would be 0 to 5."""
    scans(tmp_path, as_png, ".png")
    source = load_source(str(tmp_path))
    found = sorted(set(source.images.ravel().tolist()))
    assert len(found) == 8
    assert (found[0], found[-1]) == (0, 255)
    low, high = source.reading["window"]
    assert (low, high) == (0, 1300)
    assert found[3] == round(300 / 1300 * 255)
    said = "images of more than 256 levels: 0 becomes black and 1300 white "
    said += "(the 0.5th and 99.5th percentile of their values)"
    assert said in source.notes
    federation, _ = federation_of(resolve({"data": str(tmp_path)}))
    assert said in federation.notes
    assert federation.reading == source.reading


@pytest.mark.parametrize("known", [{}, {"size": 4, "colour": "grey"}])
def test_a_window_cuts_off_what_is_outside(tmp_path, known):
    scans(tmp_path, as_png, ".png")
    source = load_source(str(tmp_path), DataOptions(window=(100, 1000), **known))
    assert sorted(set(source.images.ravel().tolist())) == [0, round(100 / 900 * 255), round(200 / 900 * 255), 255]
    assert any("100 becomes black and 1000 white (data.window)" in note for note in source.notes)
    assert resolve({"data": str(tmp_path), "data.window": "100,1000"}).data().window == (100, 1000)


def test_a_window_that_is_none(tmp_path):
    with pytest.raises(ConfigError, match=r"the first must be below the second.*\[FS002\]"):
        DataOptions(window=(5, 5))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / name / "0.png")
    with pytest.raises(ConfigError, match=r"data\.window has no effect.*\[FS002\]"):
        load_source(str(tmp_path), DataOptions(window=(0, 5)))
    with pytest.raises(ConfigError, match=r"data\.fit=crop has no effect without data\.size.*\[FS002\]"):
        load_source(str(tmp_path), DataOptions(fit="crop"))


def test_a_deep_picture_among_plain_ones_that_nobody_looked_at(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(20):
            Image.new("L", (4, 4)).save(tmp_path / name / f"{i:02}.png")
    as_png(tmp_path / "a" / "01.png", np.full((4, 4), 4000, np.uint16))
    with pytest.raises(DataError, match=r"01\.png.*more than 256 levels.*set data\.window.*\[FS302\]"):
        load_source(str(tmp_path), DataOptions(size=4, colour="grey"))


def test_dicom_in_the_units_of_the_scanner(tmp_path):
    scans(tmp_path, lambda path, values: as_dicom(path, values, slope=(2, -1024)), ".dcm")
    source = load_source(str(tmp_path))
    assert source.reading["window"] == [-1024, 2 * 1300 - 1024]
    assert source.images.shape == (8, 4, 4, 1)
    assert source.images[1].max() == round(100 / 1300 * 255)


def test_white_may_be_zero(tmp_path):
    as_dicom(tmp_path / "a.dcm", np.array([[0, 4095]]), photometric="MONOCHROME1")
    assert np.asarray(dicom.open_dicom(tmp_path / "a.dcm", 1)).tolist() == [[4095, 0]]


def test_dicom_in_colour(tmp_path):
    colours = np.arange(2 * 3 * 3).reshape(2, 3, 3)
    as_dicom(tmp_path / "a.dcm", colours, photometric="RGB")
    assert np.array_equal(np.asarray(dicom.open_dicom(tmp_path / "a.dcm", 1)), colours)


def test_a_scan_with_nan_is_named(tmp_path):
    scans(tmp_path, as_png, ".png")
    values = np.full((4, 4), 7.0, np.float32)
    values[1, 1] = np.nan
    Image.fromarray(values).save(tmp_path / "c" / "a" / "odd.tif")
    with pytest.raises(DataError, match=r"odd\.tif.*NaN.*\[FS302\]"):
        load_source(str(tmp_path), DataOptions(window=(0, 2000)))


def test_what_tells_of_a_patient_is_never_read(tmp_path, monkeypatch):
    as_dicom(tmp_path / "a.dcm", np.zeros((4, 4)))
    seen, really = [], pydicom.dcmread
    monkeypatch.setattr(pydicom, "dcmread", lambda *a, **k: seen.append(really(*a, **k)) or seen[-1])
    dicom.open_dicom(tmp_path / "a.dcm", 1)
    (read,) = seen
    assert {element.keyword for element in read} <= set(dicom.READ)
    assert "Doe" not in str(read)
    assert not any(pydicom.datadict.tag_for_keyword(name) >> 16 == 0x0010 for name in dicom.READ)


def test_dicom_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "broken.dcm").write_bytes(b"DICM" * 40)
    with pytest.raises(DataError, match=r"broken\.dcm: cannot be read as DICOM.*\[FS302\]"):
        dicom.open_dicom(tmp_path / "broken.dcm", 1)
    as_dicom(tmp_path / "film.dcm", np.zeros((3, 4, 4)), frames=3)
    with pytest.raises(DataError, match=r"it holds 3 frames.*\[FS302\]"):
        dicom.open_dicom(tmp_path / "film.dcm", 1)
    with pytest.raises(DataError, match=r"4 x 4 x 3 pixels.*\[FS320\]"):
        dicom.open_dicom(tmp_path / "film.dcm", 1e-5)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(ConfigError, match=r"pip install fedsieve\[dicom\].*\[FS008\]"):
        dicom.open_dicom(tmp_path / "film.dcm", 1)
