"""Lines of a job's log: programs may print what looks like the launcher's own words."""

from __future__ import annotations

import pytest

from farandole.control.jobs.log_lines import MARK_OF_ALIKE, of_rank, rank_and_text


@pytest.mark.parametrize("digits", [10, 5000])
def test_number_that_is_no_rank_is_text(digits: int) -> None:
    line = f"[{'1' * digits}]<stdout>:hello"
    assert rank_and_text(line) == (None, True, line)
    assert list(of_rank([line, "[0]<stdout>:mine"], 0)) == ["[0]<stdout>:mine"]


@pytest.mark.parametrize("runs", ["0, -", "0-", "0 1", "1" * 5000, "0,1"])
def test_list_that_is_none_of_ranks_is_text(runs: str) -> None:
    assert list(of_rank([f"2 ranks ({runs}) printed:", f"{MARK_OF_ALIKE}hello"], 0)) == []


def test_ranks_that_print_alike_are_found_in_runs() -> None:
    lines = ["5 ranks (0-2, 5, 7) printed:", f"{MARK_OF_ALIKE}hello"]
    assert [rank for rank in range(9) if list(of_rank(lines, rank)) == ["hello"]] == [0, 1, 2, 5, 7]
