from pathlib import Path

from kvdiag.model.imex import ImexChannels
from kvdiag.model.missing import Missing
from kvdiag.sources.base import Context
from kvdiag.sources.imex_channels import SOURCE
from tests.trees import write_tree


def test_channels_and_the_driver_that_offers_them(tmp_path: Path) -> None:
    text = """
        proc/devices = Character devices:\\n  1 mem\\n235 nvidia-caps-imex-channels
        dev/nvidia-caps-imex-channels/channel0 = node
        """
    part = SOURCE.read(Context(root=write_tree(text, tmp_path), live=False))
    assert part == ImexChannels(channels=("channel0",), supported=True)


def test_no_channel_where_the_folder_is_absent(tmp_path: Path) -> None:
    text = "proc/devices = Character devices:\\n235 nvidia-caps-imex-channels"
    part = SOURCE.read(Context(root=write_tree(text, tmp_path), live=False))
    assert part == ImexChannels(channels=(), supported=True)


def test_nothing_is_said_without_the_list_of_drivers(tmp_path: Path) -> None:
    assert SOURCE.read(Context(root=tmp_path, live=False)) == Missing("/proc/devices does not exist")
