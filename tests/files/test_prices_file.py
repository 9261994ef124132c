"""Price lists: SkyPilot's catalogs and our own YAML."""

import pytest

from planner.errors import UserError
from planner.files.prices_file import read_prices
from planner.plan.prices import Offer

HEADER = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
)
ROWS = """\
p5.48xlarge,H100,8.0,192.0,2048.0,"{'Gpus': [{'Name': 'H100'}]}",98.32,30.5,us-east-1,us-east-1a
g6.xlarge,L4,1.0,4.0,16.0,,0.8048,,us-east-1,
m5.large,,,2.0,8.0,,0.096,0.03,us-east-1,us-east-1a
g6f.large,L4,0.125,2.0,8.0,,0.2,,us-east-1,
g6.soon,L4,1.0,4.0,16.0,,,,us-east-1,
"""


def read(tmp_path, text, name="prices.yaml"):
    file = tmp_path / name
    file.write_text(text)
    return read_prices(file)


@pytest.mark.parametrize("name", ["vms.csv", "vms"])
def test_a_catalog(tmp_path, name):
    """Machines without a GPU, with a part of one, or without a price are left out."""
    assert read(tmp_path, HEADER + ROWS, name) == (
        Offer(gpu="H100", gpus=8, on_demand=98.32, spot=30.5, name="p5.48xlarge", place="us-east-1a"),
        Offer(gpu="L4", gpus=1, on_demand=0.8048, spot=None, name="g6.xlarge", place="us-east-1"),
    )


@pytest.mark.parametrize("name", ["vms.csv", "vms"])
def test_a_mark_at_the_start_is_no_part_of_a_name(tmp_path, name):
    """Spreadsheets write it. Other columns may be there twice, or have no name."""
    twice = HEADER.replace("vCPUs,MemoryGiB", ",")
    assert read(tmp_path, "\ufeff" + twice + ROWS, name) == read(tmp_path, HEADER + ROWS, name)
    assert read(tmp_path, "\ufeffgpus: {l4: {spot: 1}}") == (Offer(gpu="l4", gpus=1, on_demand=None, spot=1.0),)


def test_merged_keys_are_no_repetition(tmp_path):
    """As YAML has it."""
    text = "gpus:\n  l4: &base {on_demand: 1, spot: 2}\n  h100: {<<: *base, on_demand: 4}\n"
    assert [(offer.on_demand, offer.spot) for offer in read(tmp_path, text)] == [(1.0, 2.0), (4.0, 2.0)]


def test_a_list_by_hand(tmp_path):
    """Dollars per hour and GPU. A node of several is rented as a whole."""
    text = "gpus:\n  h100-80g: {on_demand: 3.5, spot: 1, gpus_per_node: 8}\n  l4: {on_demand: 7e-1}\n"
    assert read(tmp_path, text) == (
        Offer(gpu="h100-80g", gpus=8, on_demand=28.0, spot=8.0),
        Offer(gpu="l4", gpus=1, on_demand=0.7, spot=None),
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "found no section gpus. Write prices such as gpus: {H100: {on_demand: 3.9, spot: 1.5}}"),
        ("gpus: {}", "found no price of a GPU"),
        ("gpus: {l4: 3}", "gpus.l4: found 3 (a whole number). Write a section of keys and values"),
        ("gpus: {l4: {spot: -1}}", "gpus.l4.spot: found -1 (a whole number). Write dollars per hour and GPU"),
        ("gpus: {l4: {price: 1}}", "gpus.l4.price: found 1 (a whole number). There is no such key"),
        ("gpus: {l4: {on_demand: 1, gpus_per_node: 0}}", "gpus.l4.gpus_per_node: found 0"),
        ("gpu: {}\ngpus: {l4: {spot: 1}}", "gpu: found an empty section. There is no such key"),
        ("gpus: {l4: {}}", "gpus.l4.on_demand: found nothing. Write dollars per hour and GPU, 0 or more, as on_demand"),
        ("gpus: {l4: {gpus_per_node: 8}, h100: {spot: 1}}", "gpus.l4.on_demand: found nothing"),
        ("gpus: {l4: {on_demand: null}}", "gpus.l4.on_demand: found null. Write dollars per hour and GPU"),
        ("gpus: {l4: {}, h100: {spot: 1}}", "gpus.l4.on_demand: found nothing"),
        ('gpus: {" ": {spot: 1}}', "gpus: found a GPU without a name. Write one, such as H100"),
        ("gpus: {3090: {spot: 1}}", "gpus: found the key 3090 (a whole number). Write a name that is text"),
        ("gpus:\n  l4: {spot: 1}\n  l4: {spot: 2}\n", "line 3, column 3: found a YAML mistake (the key l4 twice, also"),
        (
            "gpus: {l4: {spot: 1, spot: 2}}",
            "line 1, column 22: found a YAML mistake (the key spot twice, also on line 1)",
        ),
        ("gpus: {a100-80g: {spot: 1}, A100-80GB: {spot: 2}}", 'found the same GPU as "a100-80g". Keep one of them'),
        (HEADER.replace("vCPUs", "Price") + ROWS, "found the column Price 2 times. Keep one of them"),
        (HEADER, "found no price of a GPU"),
        (HEADER + "a,L4,1,4,16,,free,,r,z\n", 'line 2, Price: found "free". Write a number from 0 to 10^9, or nothing'),
        (HEADER + "a,L4,1,4,16,,nan,,r,z\n", 'line 2, Price: found "nan"'),
        ("InstanceType," + "x" * 200_000, "found what is no table (field larger than field limit"),
        ("InstanceType,Price\na,1\n", "found a table without the column AcceleratorName"),
    ],
)
def test_a_wrong_list_says_where_and_what_to_write(tmp_path, text, error):
    """In one line."""
    with pytest.raises(UserError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/prices.yaml: ")
    assert error in str(caught.value)


def test_a_large_catalog_is_read(tmp_path):
    """Those of clouds have several megabytes, more than other files of users may have."""
    rows = "".join(f"a{number},L4,1,4,16,,{number},,region,zone-of-some-length\n" for number in range(1, 40_000))
    assert len(HEADER + rows) > 2**20
    assert len(read(tmp_path, HEADER + rows, "vms.csv")) == 39_999
