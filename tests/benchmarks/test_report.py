# SPDX-License-Identifier: Apache-2.0
"""Percentiles, and the JSON record on the last line."""

import json

import pytest

from vllm.benchmarks import report


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([5.0], 99, 5.0), ([1, 2, 3, 4], 50, 2.5), ([4, 1, 3, 2], 0, 1), ([1, 2], 100, 2)],
)
def test_percentile_interpolates_between_neighbours(values, percent, expected):
    assert report.percentile(values, percent) == expected


def test_percentile_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="nothing was measured"):
        report.percentile([], 50)
    assert report.summarize([]) == {}


def test_the_last_line_and_the_file_are_the_record(capsys, tmp_path):
    path = tmp_path / "out.json"
    report.print_report("Title", {"a": "1"}, {"benchmark": "x", "value": 2.5}, str(path))
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["benchmark"], last["value"]) == ("x", 2.5)
    assert last["machine"]["num_cpus"] >= 1
    assert json.loads(path.read_text()) == last
