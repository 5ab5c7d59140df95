"""The account of a device in a profile's file, in reports and in comparisons."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from fuzz.documents import everything
from outputs import invoke
from rendering import render_accounts

from memprof.profiler.file.profile_file import read_profile, write_profile
from memprof.profiler.model import DeviceAccount, Profile
from memprof.profiler.support.errors import ProfileInvalidError
from memprof.profiler.views.compare.diff import NothingToCompare, compare

MIB = 1 << 20


@pytest.fixture
def account() -> DeviceAccount:
    return copy.deepcopy(everything().accounts[0])


def test_comes_back_from_a_file(tmp_path: Path, account: DeviceAccount) -> None:
    write_profile(Profile(accounts=[account]), tmp_path / "run.memprof")
    assert read_profile(tmp_path / "run.memprof").accounts == [account]


def test_one_that_does_not_add_up_is_refused(tmp_path: Path, account: DeviceAccount) -> None:
    account.reserved += 1
    write_profile(Profile(accounts=[account]), tmp_path / "run.memprof")
    with pytest.raises(ProfileInvalidError, match="while its parts have"):
        read_profile(tmp_path / "run.memprof")


def test_the_text_adds_up(account: DeviceAccount) -> None:
    text = render_accounts([account])
    assert "in the backward of step 2" in text
    for row in ("6.00 MiB   30.0 %  activation", "20.0 MiB  100.0 %  total reserved"):
        assert row in text
    assert "out of memory: 7.00 MiB asked for · 2 times" in text
    assert "The program looked at values 4 times" in text


def test_the_command_prints_it(tmp_path: Path, account: DeviceAccount) -> None:
    path = str(tmp_path / "run.memprof")
    write_profile(Profile(accounts=[account]), path)
    text = invoke("report", path).output
    assert "total reserved" in text
    assert "No call of a compiled graph" not in text
    found = json.loads(invoke("report", "--json", path).output)
    assert found["accounts"][0]["reserved"] == account.reserved


def test_compares_by_category_module_and_line(account: DeviceAccount) -> None:
    after = copy.deepcopy(account)
    grown = after.rows[0]
    after.rows[0] = type(grown)(
        grown.category, grown.nbytes + 2 * MIB, grown.count, grown.modules, grown.frame
    )
    after.given_back += MIB
    after.reserved += 3 * MIB
    found = compare(Profile(accounts=[account]), Profile(accounts=[after]))
    (reserved,) = found.quantities
    assert (reserved.name, reserved.device, reserved.change) == ("reserved", "cuda:0", 3 * MIB)
    changed = {view: [(c.key, c.change) for c in cs] for view, cs in reserved.views.items()}
    assert changed == {
        "category": [("activation", 2 * MIB), ("(given back)", MIB)],
        "module": [("Net > Block", 2 * MIB), ("(given back)", MIB)],
        "line": [("train.py: loss.backward()", 2 * MIB), ("(given back)", MIB)],
    }


def test_an_account_on_one_side_is_said(account: DeviceAccount) -> None:
    with pytest.raises(NothingToCompare, match="accounts of devices: only after"):
        compare(Profile(), Profile(accounts=[account]))
