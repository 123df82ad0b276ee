"""A user's own prices and types over the catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import SettingsError
from cloudtrain.machines.overlay import apply_overlay, load_overlay, load_overlays, read_overlay
from cloudtrain.machines.table import InstanceType, instance_types
from tests.hints import one_of, suggested, words_before_name

TYPES = instance_types("sagemaker")

PRICE = '[sagemaker."ml.p5.48xlarge"]\nprice = 55.04\n'

NEW = """\
[sagemaker."ml.p7.48xlarge"]
vcpus = 256
memory_gib = 4096
gpus = 8
gpu = "R100-288GB"
interconnect = "rdma"
"""


def file_with(folder: Path, text: str) -> Path:
    """An `instances.toml`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "instances.toml"
    file.write_text(text)
    return file


def overlaid(file: Path) -> dict[str, InstanceType]:
    """The types with the file's corrections, by name."""
    return {instance.name: instance for instance in apply_overlay(TYPES, load_overlay(file))}


def test_a_price_is_corrected_and_says_from_where(tmp_path: Path) -> None:
    """One cell changes, the price's source is the file, and all other rows are untouched."""
    file = file_with(tmp_path, PRICE)
    rows = overlaid(file)
    p5 = rows["ml.p5.48xlarge"]
    assert (p5.price, p5.price_source, p5.price_date) == (55.04, str(file), "")
    assert [row.name for row in TYPES if rows[row.name] != row] == ["ml.p5.48xlarge"]
    assert list(rows) == [row.name for row in TYPES]


def test_a_type_is_added(tmp_path: Path) -> None:
    """Vcpus and memory are enough; family, GPU memory and fabric follow from what is said."""
    file = file_with(tmp_path, NEW)
    rows = overlaid(file)
    assert list(rows)[-1] == "ml.p7.48xlarge"
    assert rows["ml.p7.48xlarge"] == InstanceType(
        "sagemaker", "ml.p7.48xlarge", "p7", 256, 4096.0, gpus=8, gpu="R100-288GB", gpu_memory_gib=288.0,
        interconnect="rdma", fabric="efa", source=str(file),
    )  # fmt: skip


def test_a_corrected_fact_is_marked(tmp_path: Path) -> None:
    """The source says which columns are the user's, and dates may be TOML's."""
    text = '[sagemaker."ml.p2.xlarge"]\nretired = 2025-01-31\nnvme_gb = 1\nprice = 1\nprice_date = "2024-05-01"\n'
    file = file_with(tmp_path, text)
    row = overlaid(file)["ml.p2.xlarge"]
    assert (row.retired, row.price, row.price_date) == ("2025-01-31", 1.0, "2024-05-01")
    assert row.source.endswith(f"; retired, nvme_gb: {file}")


def test_the_projects_file_wins_over_the_users(tmp_path: Path) -> None:
    """Both are read; the nearest one upwards is the project's; cells that only one has stay."""
    user, project = tmp_path / "config", tmp_path / "project"
    file_with(user, PRICE + "nvme_gb = 7\n")
    file_with(project, PRICE.replace("55.04", "50"))
    (project / "src" / "deep").mkdir(parents=True)
    rows = {
        row.name: row for row in apply_overlay(TYPES, load_overlays(user, project / "src" / "deep"))
    }
    assert (rows["ml.p5.48xlarge"].price, rows["ml.p5.48xlarge"].nvme_gb) == (50.0, 7)


def test_without_files_nothing_changes(tmp_path: Path) -> None:
    """No file is no correction, and the types are the catalogue's."""
    assert load_overlays(tmp_path, tmp_path / "nowhere") == ()
    assert apply_overlay(TYPES, ()) == TYPES


def test_other_targets_are_left_alone(tmp_path: Path) -> None:
    """A file may hold both clouds; a cloud without a table gets its rows by name."""
    text = '[azureml.Standard_X]\nvcpus = 4\nmemory_gib = 16\ninterconnect = "rdma"\n'
    overlay = load_overlay(file_with(tmp_path, text))
    assert apply_overlay(TYPES, overlay) == TYPES
    (row,) = apply_overlay((), overlay, "azureml")
    assert (row.target, row.name, row.fabric) == ("azureml", "Standard_X", "infiniband")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[sagemaker", "not valid TOML", "correct the text"),
        ("[sagemeker.x]\nprice = 1", "`sagemeker` is not a target", suggested("sagemaker")),
        ("sagemaker = 3", "`sagemaker` must be a table", "price = 55.04"),
        ("[sagemaker]\nprice = 3", "`price` must be a table", "price = 55.04"),
        (PRICE.replace("price", "prise"), "there is no column `prise`", suggested("price")),
        (PRICE.replace("price", "name"), "there is no column `name`", words_before_name(one_of("")).strip()),
        (PRICE.replace("55.04", "'55'"), "`price` must be a number above 0, not `\"55\"`", "write a number above 0"),
        (PRICE.replace("55.04", "0"), "`price` must be a number above 0, not `0`", ""),
        (PRICE.replace("55.04", "-1"), "must be a number above 0, not `-1`", ""),
        (PRICE.replace("55.04", "nan"), "must be a number above 0, not `nan`", ""),
        (PRICE.replace("55.04", "true"), "must be a number above 0, not `true`", ""),
        (PRICE + "gpus = 8.5", "`gpus` must be a whole number, not `8.5`", ""),
        (PRICE + "gpus = -1", "`gpus` must be a whole number, not `-1`", ""),
        (PRICE + "smddp = 1", "`smddp` must be `true` or `false`, not `1`", ""),
        (PRICE + "retired = 1", "`retired` must be a text in quotes, not `1`", ""),
        (PRICE + "interconnect = 'fast'", "`interconnect` must be `\"rdma\"` or", ""),
        (PRICE.replace("p5", "p55"), "needs `vcpus` and `memory_gib`", suggested("ml.p5.48xlarge")),
        (NEW.replace("vcpus = 256", ""), "a new type needs `vcpus`", "If it is a new type, add `vcpus`"),
        (NEW.replace("gpus = 8", ""), "a type has `gpus`, `gpu` and `gpu_memory_gib` together", "gpus = 8"),
        (NEW.replace("-288GB", ""), "a type has `gpus`, `gpu` and `gpu_memory_gib` together", "H100-80GB"),
        (NEW + 'fabric = ""', "needs a `fabric`", 'fabric = "efa"'),
    ],
)  # fmt: skip
def test_mistakes_name_the_file_and_the_way_out(
    tmp_path: Path, text: str, message: str, hint: str
) -> None:
    """Every mistake is an error with the file's name, and a hint where there is something to type."""
    file = file_with(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        overlaid(file)
    assert caught.value.message.startswith(str(file))
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.code in ("CT002", "CT918")


def test_mistakes_come_all_at_once_with_their_lines(tmp_path: Path) -> None:
    """Line and column of each, as in a job file."""
    file = file_with(tmp_path, PRICE + "gpus = -1\nprise = 2\n")
    with pytest.raises(SettingsError) as caught:
        overlaid(file)
    assert [(problem.place, problem.code) for problem in caught.value.problems] == [
        (f'{file}:3:8  sagemaker."ml.p5.48xlarge".gpus', "CT918"),
        (f'{file}:4:1  sagemaker."ml.p5.48xlarge".prise', "CT918"),
    ]


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    """A folder of that name cannot be read, and says so."""
    with pytest.raises(SettingsError, match="cannot be read"):
        load_overlay(tmp_path)


_VALUES = st.one_of(
    st.booleans(), st.integers(-5, 10**6), st.floats(allow_nan=True), st.text(max_size=5)
)


@given(
    st.dictionaries(
        st.sampled_from(["price", "vcpus", "gpu", "gpus", "smddp", "retired", "x"]), _VALUES
    )
)
def test_any_table_is_applied_or_refused(cells: dict[str, object]) -> None:
    """Whatever stands in a table, the row has it afterwards or a SettingsError says why not."""
    try:
        overlay = read_overlay({"sagemaker": {"ml.p5.48xlarge": cells}}, "instances.toml")
        rows = {row.name: row for row in apply_overlay(TYPES, overlay)}
    except SettingsError as error:
        outcome = error.message
    else:
        outcome = {column: getattr(rows["ml.p5.48xlarge"], column) for column in cells}
    assert outcome == cells or str(outcome).startswith('instances.toml  sagemaker."ml.p5')
