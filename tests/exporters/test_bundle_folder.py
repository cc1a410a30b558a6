from pathlib import Path

import pytest

from kvdiag.errors import InputError
from kvdiag_exporters.bundle_folder import BundleFolder


def test_a_folder_of_other_things_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root")
    (tmp_path / "group").mkdir()
    with pytest.raises(InputError, match=r"holds group and 1 more, which is no part of a bundle; name a new or empty"):
        BundleFolder(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["group", "passwd"]


def test_an_empty_volume_takes_a_bundle_that_may_hold_notes_later(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".snapshot").mkdir()
    first = BundleFolder(tmp_path)
    first.write_meta({"schema": "kvdiag.bundle/1"})
    first.close()
    (tmp_path / "notes.md").write_text("what we saw")
    again = BundleFolder(tmp_path)
    assert again.continued
    again.close()
