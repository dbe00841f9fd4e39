"""Files: what is written comes back, and whatever is wrong ends in one InputError that says where."""

import math
import os
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from widemargin import Dataset, InputError, data, disk
from widemargin.verify import files as verify

X = np.array([[1.0, -1e300], [0.1, 1e-300], [0.0, 0.0], [1 / 3, 2.0]])
Y = np.array([1.0, -1.0, -1.0, 1.0])
fuzz = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".CSV"])
def test_round_trip(tmp_path, suffix):
    path = tmp_path / f"points{suffix}"
    data.save_dataset(Dataset(X, Y), path)
    back = data.load_file(path)
    assert_array_equal(back.X, X)
    assert_array_equal(back.y, Y)
    assert (back.name, back.classes, back.notes) == (path.name, (-1, 1), ())
    targets = Dataset(X, [0.1, 1e-300, 3.0, -2.0])
    data.save_dataset(targets, path)
    assert_array_equal(data.load_file(path, targets=True).y, targets.y)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_one_class_comes_back_as_targets(tmp_path):
    plane = data.bad_kkt_plane(0.1)
    data.save_dataset(plane, tmp_path / "plane.csv")
    back = data.load_file(tmp_path / "plane.csv", targets=True)
    assert_array_equal(back.X, plane.X)
    assert_array_equal(back.signs(), plane.y)


@pytest.mark.parametrize("name", ["points.txt", "points", "absent/points.npz", "folder.csv"])
def test_save_refuses(tmp_path, name):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=r"must end in|cannot write"):
        data.save_dataset(Dataset(X, Y), tmp_path / name)


def test_npy_pairs(tmp_path):
    for name, array in (("X", X), ("y", Y), ("foo", X), ("foo_y", Y[:, None]), ("a,b", X), ("a,b_y", Y)):
        np.save(tmp_path / f"{name}.npy", array)
    for source in (
        f"{tmp_path}/X.npy,{tmp_path}/y.npy",
        f"{tmp_path}/X.npy",
        f"{tmp_path}/foo.npy",
        f"{tmp_path}/a,b.npy",
    ):
        back = data.load(source)
        assert_array_equal(back.X, X)
        assert_array_equal(back.y, Y)


def test_a_pair_is_of_npy_files(tmp_path):
    """An archive before the comma was read, and the labels behind it were not."""
    np.savez(tmp_path / "a.npz", X=X, y=Y)
    np.save(tmp_path / "a_y.npy", -Y)
    with pytest.raises(InputError, match=r"give two \.npy paths"):
        data.load(f"{tmp_path}/a.npz,{tmp_path}/a_y.npy")


@pytest.mark.parametrize(
    "labels, classes, note",
    [
        ([1, 0, 0, 1], (0, 1), "label 0 -> -1, 1 -> +1"),
        ([2.5, -1, -1, 2.5], (-1, 2.5), "label -1 -> -1, 2.5 -> +1"),
        (["dog", "cat", "cat", "dog"], ("cat", "dog"), "label 'cat' -> -1, 'dog' -> +1"),
        ([True, False, False, True], (False, True), "label False -> -1, True -> +1"),
        ([1, -1, -1, 1], (-1, 1), None),
    ],
)
def test_two_labels_of_any_kind(tmp_path, labels, classes, note):
    np.savez(tmp_path / "a.npz", X=X, y=np.array(labels))
    from_npz = data.load_file(tmp_path / "a.npz")
    rows = "".join(f"{x[0]},{label},{x[1]}\n" for x, label in zip(X, labels))
    from_csv = data.load_file(write(tmp_path / "a.csv", "u,label,v\n" + rows))
    for back in (from_npz, from_csv):
        assert_array_equal(back.X, X)
        assert_array_equal(back.y, Y)
    assert from_npz.classes == classes
    assert from_npz.notes == ((note,) if note else ())
    assert tuple(map(str, from_csv.classes)) == tuple(map(str, classes))
    assert len(from_csv.notes) == (note is not None)


def test_csv_details(tmp_path):
    text = '\ufeff a , "b" ,kind,y\r\n\r\n 1, 2 ,cat,7\r\n1,-2.5e-3,dog,8\r\n\r\n'
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(InputError, match="column 'kind'"):
        data.load_file(path)
    back = data.load_file(write(tmp_path / "b.csv", text.replace(",kind", ",label2")), label="label2")
    assert_array_equal(back.X, [[1, 2, 7], [1, -2.5e-3, 8]])
    assert back.classes == ("cat", "dog")


@pytest.mark.parametrize(("mark", "called"), [(";", "semicolons"), ("\t", "tabs")])
def test_other_marks_and_decimal_commas(tmp_path, mark, called):
    """As spreadsheets write it where a comma is a decimal point: read, and told."""
    text = '\ufeff"Temp, [C]";Humidity (%);buys?;n\r\n12,5;-3,25e1;yes;1\r\n7;0,5;no;1\r\n'.replace(";", mark)
    back = data.load_file(write(tmp_path / "a.csv", text), label="buys?")
    assert_array_equal(back.X, [[12.5, -32.5, 1], [7, 0.5, 1]])
    assert back.columns == ("Temp, [C]", "Humidity (%)", "n") and back.classes == ("no", "yes")
    assert back.notes[0] == f"columns separated by {called}, and a comma is a decimal point"
    with pytest.raises(ValueError, match="one column y or label, with commas between columns"):  # where only numpy is
        verify.read_data(str(tmp_path / "a.csv"), "f1")
    plain = data.load_file(write(tmp_path / "b.csv", "a,b,n,y\n12.5,-32.5,1,yes\n7,0.5,1,no\n"))
    assert back.sha256() == plain.sha256()


def test_accepted_oddities(tmp_path):
    text = "a,b,y\n0,0,1\n0,0,0\n1e300,5,1\n1e-300,5,0\n1e-400,5,0\n"  # zero rows, contradictions, extremes
    back = data.load_file(write(tmp_path / "a.csv", text))
    assert_array_equal(back.X[:, 0], [0, 0, 1e300, 1e-300, 0])
    np.savez(tmp_path / "a.npz", X=np.zeros((2, 2), dtype=np.int8), y=[0, 1], other=np.zeros(1))
    assert data.load_file(tmp_path / "a.npz").n == 2
    np.savez(tmp_path / "b.npz", X=np.zeros((2, 2), dtype=np.float16), target=[0, 1])
    assert data.load_file(tmp_path / "b.npz", label="target").n == 2


@pytest.mark.parametrize(
    "text, words",
    [
        ("", ["empty"]),
        ("\n\n", ["empty"]),
        ("a,b,y\n", ["empty"]),
        ("y\n1\n0\n", ["feature"]),
        ("1,2,3\n4,5,6\n", ["header"]),
        ("a;b;y\n1;2;3\n", ["one class", "3"]),
        ("a;b;y\n1;2,5,1;3\n", ["'b'", "text", "2,5,1"]),
        ("a;b;y\n1.234;2;1\n12,5;1;0\n", ["a comma, '12,5'", "a point, '1.234'", "thousands with none"]),
        ("a\tb\ty\n1,234\t2\t1\n5\t1.5\t0\n", ["a comma, '1,234'", "a point, '1.5'"]),
        ("a,b,c,y\n1,red,2020-01-01,0\n2,blue,2020-01-02,1\n", ["2 columns hold text ('b', 'c')", "label="]),
        ("a,b,y\n1,NA,0\n1,2,1\n", ["'b'", "row 0", "line 2", "is empty, 'NA'", "remove the row"]),
        ("a,b,y\n1,NA,0\n?,2,1\n,3,0\n4,5,1\n", ["'a' at row 1", "is empty, '?'", "3 of 4 lack a number"]),
        (",a,y\n0,1,0\n", ["column 0", "name"]),
        ("Unnamed: 0,a,y\n0,1,0\n1,2,1\n", ["column 0", "remove a row index"]),
        ("a,a,y\n1,2,0\n", ["two columns", "'a'"]),
        ("a,b,c\n1,2,0\n", ["label", "a, b, c"]),
        ('"two\nlines",b\n1,2\n', ["two lines, b"]),
        ("a,y,label\n1,2,0\n", ["label="]),
        ("a,b,y\n1,2,0\n1,2\n", ["line 3", "2 fields"]),
        ("a,b,y\n1,2,0\n\n1,2,3,4\n", ["line 4", "4 fields"]),
        ("a,b,y\n1,2,0\n1,red,1\n", ["'b'", "row 1", "line 3", "text", "red"]),
        ("a,b,y\n1,2,0\n1,,1\n", ["'b'", "row 1", "empty"]),
        ("a,b,y\n1,nan,0\n1,2,1\n", ["'b'", "row 0", "NaN"]),
        ("a,b,y\n1,1,0\n-inf,2,1\n", ["'a'", "row 1", "infinity"]),
        ("a,b,y\n1,1,0\n1e999,2,1\n", ["'a'", "row 1", "infinity"]),
        ("a,b,y\n1,1,0\n1_000,2,1\n", ["'a'", "row 1", "text"]),
        ("a,b,y\n1,1,0\n2,2,\n", ["'y'", "row 1", "empty"]),
        ("a,b,y\n1,1,0\n2,2,nan\n", ["y", "row 1", "NaN"]),
        ("a,b,y\n1,1,0\n2,2,0\n", ["one class", "0"]),
        ("a,b,y\n1,1,0\n2,2,1\n3,3,2\n", ["3 classes", "0, 1, 2"]),
        ("a,b,y\n1,1,r\n2,2,s\n3,3,t\n", ["3 classes", "'r', 's', 't'"]),
        (b"a,b,y\n1,1,\xff\n", ["UTF-8"]),
        (b"a,b,y\n1,1," + b"9" * 200_000 + b"\n", ["line 2 is no line of a table", "field"]),
        (b"a" * 200_000 + b",y\n1,1\n", ["line 1 is no line of a table", "field"]),
    ],
)
def test_bad_csv(tmp_path, text, words):
    with pytest.raises(InputError) as caught:
        data.load_file(write(tmp_path / "bad.csv", text))
    for word in ["bad.csv", *words]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_csv_label_is_named(tmp_path):
    path = write(tmp_path / "a.csv", "a,b,y\n1,1,0\n2,2,1\n")
    with pytest.raises(InputError, match=r"'colour'.*a, b, y"):
        data.load_file(path, label="colour")
    with pytest.raises(InputError, match=r"'y' at row 0.*text"):
        data.load_file(write(path, "a,b,y\n1,1,u\n2,2,v\n"), targets=True)


def headed(path, name, kind, shape, content=b""):
    """An .npz file whose array `name` has this head, and X and y of four points else."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in {"X": X, "y": Y}.items():
            with archive.open(f"{key}.npy", "w") as file:
                if key != name:
                    np.save(file, array)
                    continue
                np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
                file.write(content)
    return path


@pytest.mark.parametrize(
    ("name", "kind", "shape"),
    [
        ("y", "|V0", (10**8,)),
        ("y", "<U0", (10**8,)),
        ("y", "|b1", (60_000_000,)),
        ("X", "|b1", (4, 15_000_000)),
    ],
)
def test_arrays_that_take_far_more_memory_than_their_file_are_refused(tmp_path, name, kind, shape):
    content = b"" if kind.endswith("0") else bytes(math.prod(shape))
    path = headed(tmp_path / "small.npz", name, kind, shape, content)
    assert path.stat().st_size < 10**5
    with zipfile.ZipFile(
        path, "a"
    ) as archive:  # as large as lets so many bytes pass, if they were not to become numbers
        archive.writestr("more", os.urandom(10**5))
    with pytest.raises(
        InputError, match=r"take \d+ bytes as numbers, far more than its own \d+; write them uncompressed"
    ):
        data.load_file(path)
    with pytest.raises(ValueError, match=r"far more than its own"):
        verify.read_data(str(path), "linear")


def test_one_label_of_a_hundred_thousand_characters_is_refused(tmp_path):
    """Every label would be as long: 2 GB of a file of 130 kB."""
    path = tmp_path / "d.csv"
    path.write_text("a,y\n1," + "x" * 100_000 + "\n" + "2,b\n" * 5_000)
    with pytest.raises(InputError, match="'y' has a label of 100000 characters"):
        data.load(str(path))
    with pytest.raises(ValueError, match="a label has 100000 characters"):
        verify.read_data(str(path), "linear")
    path.write_text("a,y\n1," + "x" * 1_000 + "\n" + "2,b\n" * 1_000)
    assert data.load(str(path)).n == len(verify.read_data(str(path), "linear")[1]) == 1_001


def test_labels_that_differ_in_their_17th_digit_are_two(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, X=np.eye(3), y=np.array([2**53, 2**53 + 1, 2**53]))
    found = data.load(str(path))
    assert found.classes == (2**53, 2**53 + 1) and found.y.tolist() == [-1, 1, -1]
    assert verify.read_data(str(path), "linear")[1].tolist() == [-1, 1, -1]


def test_an_array_with_a_long_head_is_no_pickle(tmp_path):
    head = b"{'descr': '<f8'," + b" " * 60_000 + b"'fortran_order': False, 'shape': (1,)}\n"
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(8))
        archive.writestr("y.npy", b"")
    with pytest.raises(InputError, match="Header info length"):
        data.load(str(tmp_path / "d.npz"))


def test_a_head_that_no_parser_takes_is_damage_and_not_too_little_memory(tmp_path):
    head = b"-" * 9000 + b"1\n"
    array = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("X.npy", array)
        archive.writestr("y.npy", array)
    for name in ("d.npz", "a.npy"):
        with pytest.raises(InputError, match="is damaged, truncated or unreadable"):
            data.load_file(write(tmp_path / name, array) if name == "a.npy" else tmp_path / name)
    with pytest.raises(ValueError, match=r"cannot read the data: the head of an array is none"):
        verify.read_data(str(tmp_path / "d.npz"), "f1")


def test_a_single_array_of_nothing_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", X)
    with open(tmp_path / "a_y.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|V0", "fortran_order": False, "shape": (10**8,)})
    with pytest.raises(InputError, match="as numbers"):
        data.load_file(tmp_path / "a.npy")


def test_real_data_are_within_the_bounds():
    """Sizes of real files: 10^6 rows of 100 columns uncompressed, and MNIST as compressed bytes."""
    assert disk.fits_memory(8 * 101 * 10**6, 8 * 101 * 10**6)
    assert disk.fits_memory(8 * 70_000 * 785, 11_490_479)


def test_what_is_saved_can_be_read_again_however_well_it_packs(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "ENTRIES", 1000)
    flat = Dataset(np.ones((2000, 3)), np.tile([1.0, -1.0], 1000))
    data.save_dataset(flat, tmp_path / "flat.npz")
    assert data.load_file(tmp_path / "flat.npz").sha256() == flat.sha256()


@pytest.mark.parametrize(
    "arrays, word",
    [
        ({"X": X}, "no array 'y'"),
        ({"y": Y}, "no array 'X'"),
        ({"X": X, "y": Y[:3]}, "one target per row"),
        ({"X": X[:, 0], "y": Y}, "two dimensions"),
        ({"X": np.float64(3), "y": Y}, "two dimensions"),
        ({"X": X, "y": np.float64(3)}, "one target per row"),
        ({"X": np.zeros((0, 2)), "y": np.zeros(0)}, "empty"),
        ({"X": np.zeros((4, 0)), "y": Y}, "empty"),
        ({"X": X * (1 + 1j), "y": Y}, "complex"),
        ({"X": X, "y": Y * 1j}, "complex"),
        ({"X": X.astype(str), "y": Y}, "text"),
        ({"X": X.astype(object), "y": Y}, "pickles are refused"),
        ({"X": X, "y": Y.astype(object)}, "pickles are refused"),
        ({"X": np.zeros((4, 2), dtype="datetime64[s]"), "y": Y}, "dates"),
        ({"X": np.zeros(4, dtype=[("a", float)]), "y": Y}, "records"),
        ({"X": np.where(X == 0, np.nan, X), "y": Y}, "row 2, column 0"),
        ({"X": np.where(X == 2, np.inf, X), "y": Y}, "row 3, column 1"),
        ({"X": X, "y": [1, np.nan, -1, 1]}, "row 1"),
        ({"X": X, "y": [1, 1, 1, 1]}, "one class"),
        ({"X": X, "y": [1, 2, 3, 3]}, "3 classes"),
        ({"X": np.broadcast_to(np.int8(0), (10**7 + 1, 1)), "y": np.broadcast_to(np.int8(0), 10**7 + 1)}, "too many"),
    ],
)
def test_bad_npz(tmp_path, arrays, word):
    np.savez_compressed(tmp_path / "bad.npz", **arrays)
    with pytest.raises(InputError, match=word):
        data.load_file(tmp_path / "bad.npz")


def test_damaged_files(tmp_path):
    np.savez(tmp_path / "good.npz", X=X, y=Y)
    content = (tmp_path / "good.npz").read_bytes()
    for length in (0, 3, 50, len(content) // 2, len(content) - 10):
        with pytest.raises(InputError, match=r"truncated|not an .npz"):
            data.load_file(write(tmp_path / "cut.npz", content[:length]))
    np.save(tmp_path / "good.npy", X)
    content = (tmp_path / "good.npy").read_bytes()
    for length in (0, 3, 50, len(content) - 10):
        with pytest.raises(InputError, match=r"truncated|not an .npy"):
            data.load_file(write(tmp_path / "cut.npy", content[:length]))
    for suffix in ("npz", "npy"):
        with pytest.raises(InputError, match=f"not an .{suffix}"):
            data.load_file(write(tmp_path / f"pickle.{suffix}", pickle.dumps(X)))
    np.save(tmp_path / "object.npy", X.astype(object), allow_pickle=True)
    with pytest.raises(InputError, match="pickles are refused"):
        data.load_file(tmp_path / "object.npy")


def test_bad_paths(tmp_path):
    (tmp_path / "folder.npz").mkdir()
    for path, word in {
        tmp_path: "folder",
        tmp_path / "folder.npz": "folder",
        tmp_path / "absent.csv": "No such file",
        tmp_path / "absent.npz": "No such file",
        tmp_path / "notes.txt": r"\.csv, \.npz, \.npy",
        f"{tmp_path}/a.npy,{tmp_path}/b.npy": "a.npy.*No such file",
        "a.npy,b.npy,c.npy": "two .npy",
        "a\0.csv": "no legal path",
        "x" * 5000 + ".csv": "name too long",
        os.fsencode(tmp_path): "must be text",
    }.items():
        with pytest.raises(InputError, match=word):
            data.load_file(path)
    np.save(tmp_path / "alone.npy", X)
    with pytest.raises(InputError, match=r"alone_y.npy.*No such file"):
        data.load_file(tmp_path / "alone.npy")
    with pytest.raises(InputError, match="leave label='y' out"):
        data.load_file(tmp_path / "alone.npy", label="y")


def test_unreadable_files(tmp_path, monkeypatch):
    def deny(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("widemargin.data.files.open", deny, raising=False)
    for name in ("a.csv", "a.npz", "a.npy"):
        (tmp_path / name).touch()
        with pytest.raises(InputError, match=f"{name}.*Permission denied"):
            data.load_file(tmp_path / name)


def check_loads_or_says_why(path, **options):
    try:
        back = data.load_file(path, **options)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert np.isfinite(back.X).all()


@fuzz
@given(content=st.binary(max_size=300), suffix=st.sampled_from([".csv", ".npz", ".npy"]))
def test_random_bytes(tmp_path, content, suffix):
    check_loads_or_says_why(write(tmp_path / f"random{suffix}", content))


@fuzz
@given(
    text=st.text(alphabet='ay,;"\n\r\t 01.-e_nif\0', max_size=60),
    head=st.sampled_from(["", "a,y\n", "a,b,y\n1,2,0\n3,4,1\n"]),
    targets=st.booleans(),
)
def test_random_text(tmp_path, text, head, targets):
    check_loads_or_says_why(write(tmp_path / "random.csv", head + text), targets=targets)


@fuzz
@given(
    place=st.integers(0, 10_000),
    byte=st.integers(0, 255),
    length=st.integers(1, 40),
    suffix=st.sampled_from([".npz", ".npy"]),
)
def test_damaged_bytes(tmp_path, place, byte, length, suffix):
    good = tmp_path / f"good{suffix}"
    if not good.exists():
        np.savez(tmp_path / "good.npz", X=X, y=Y)
        np.save(tmp_path / "good.npy", X)
        np.save(tmp_path / "random_y.npy", Y)
    content = bytearray(good.read_bytes())
    place %= len(content)
    content[place : place + length] = bytes([byte]) * length
    check_loads_or_says_why(write(tmp_path / f"random{suffix}", bytes(content)))


def test_targets_as_a_loss_takes_them(tmp_path):
    """Numbers are targets of the squared loss, words and truth values are classes; other losses have labels."""
    X, file = np.arange(8.0).reshape(4, 2), str(tmp_path / "t.npz")
    for y, squared, labels, said in (
        (np.array([0, 1, 1, 0]), [0, 1, 1, 0], [-1, 1, 1, -1], "targets 0 and 1, as they are"),
        (np.array([3.5, 1, 2, 0]), [3.5, 1, 2, 0], [3.5, 1, 2, 0], "targets from 0 to 3.5, as they are"),
        (np.array([False, True, True, False]), [-1, 1, 1, -1], [-1, 1, 1, -1], "label False -> -1"),
        (np.array(["b", "a", "a", "b"]), [1, -1, -1, 1], [1, -1, -1, 1], "label 'a' -> -1"),
        (np.array([1.0, -1, 1, 1]), [1, -1, 1, 1], [1, -1, 1, 1], ""),
        (np.full(4, 2.0), [2, 2, 2, 2], [2, 2, 2, 2], "targets 2, as they are"),
    ):
        np.savez(file, X=X, y=y)
        for loss, wanted in (("squared", squared), ("logistic", labels)):
            found = data.load_for_loss(file, loss=loss)
            assert found.y.tolist() == wanted and found.X.tolist() == X.tolist()
        assert said in " ".join(data.load_for_loss(file, loss="squared").notes)
    spec = "clusters:n=6,seed=0"
    assert data.load_for_loss(spec, loss="squared").sha256() == data.load_for_loss(spec, loss="hinge").sha256()
    np.savez(file, X=X, y=np.array(["a", "b", "c", "a"]))
    for loss in ("squared", "logistic"):
        with pytest.raises(InputError, match="3 classes"):
            data.load_for_loss(file, loss=loss)


def test_a_label_that_is_missing_among_numbers(tmp_path):
    path = tmp_path / "marks.csv"
    for cell in ("NA", "?", "n/a", "null"):
        path.write_text(f"a,b,y\n1,2,0\n2,3,{cell}\n3,1,1\n")
        for how in ({}, {"multiclass": True}):
            with pytest.raises(
                InputError, match=r"column 'y' at row 1 \(line 3\) is empty, .*; give every row a label"
            ):
                data.load_file(path, **how)
    path.write_text("a,b,y\n1,2,NA\n2,3,EU\n")  # North America
    assert data.load_file(path).classes == ("EU", "NA")


def test_one_class_is_told_what_to_do(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("a,b,y\n1,2,yes\n2,3,yes\n")
    with pytest.raises(InputError, match=r"only one class \('yes'\); give points of at least two"):
        data.load_file(path)


def test_a_spreadsheet_that_says_what_separates(tmp_path):
    path = tmp_path / "sheet.csv"
    path.write_text("sep=;\na;b;y\n1;2;yes\n2;1;no\n")
    with pytest.raises(InputError, match="the first line only says what separates columns; remove it"):
        data.load_file(path)


def test_lines_of_spaces_are_no_points(tmp_path):
    """Editors leave them at the end of a file."""
    path = write(tmp_path / "points.csv", "  \nx,y\n1,0\n \t\n2,1\n   \n")
    assert data.load_file(path).X.tolist() == [[1.0], [2.0]]
    with pytest.raises(InputError, match="line 3 has 1 fields but the header has 2"):
        data.load_file(write(path, "x,y\n1,0\n7\n2,1\n"))


def test_labels_of_17_digits_are_told_apart(tmp_path):
    path = write(tmp_path / "ids.csv", "x,y\n1,9007199254740992\n2,9007199254740993\n")
    assert data.load_file(path).classes == (9007199254740992, 9007199254740993)
    write(path, "x,y\n1,9007199254740992\n2,9007199254740993\n3,5\n")
    with pytest.raises(InputError, match="3 classes"):
        data.load_file(path)
    assert data.load_file(path, targets=True).y.dtype == np.float64
    assert data.load_file(write(path, "x,y\n1,5\n2,90071992547409930000\n")).classes == (5.0, 90071992547409930000.0)
