import pytest

from kvdiag.errors import UsageError
from kvdiag_probes.sizes import format_size, parse_size, parse_sizes


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("4096", 4096), ("64KiB", 65536), ("64k", 65536), (" 2 MiB ", 2 << 20), ("1G", 1 << 30), ("512B", 512)],
)
def test_sizes_are_binary(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("64KB", "may mean 1000 or 1024; write 64KiB"),
        ("", "an empty size"),
        ("0", "outside 1 byte to 1GiB"),
        ("2GiB", "outside 1 byte to 1GiB"),
        ("-1", "'-1' is not a size"),
        ("1.5MiB", "'1.5MiB' is not a size"),
        ("64QiB", "'64QiB' is not a size"),
    ],
)
def test_a_bad_size_is_one_clear_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text, "--size")
    assert str(caught.value).startswith("--size: ") and said in str(caught.value)


def test_a_list_keeps_its_order_and_refuses_repetition() -> None:
    assert parse_sizes("1MiB,64KiB") == (1 << 20, 65536)
    with pytest.raises(UsageError, match="names a size twice"):
        parse_sizes("64KiB,65536")
    with pytest.raises(UsageError, match="an empty size"):
        parse_sizes("64KiB,")


@pytest.mark.parametrize(("size", "text"), [(65536, "64KiB"), (1000, "1000B"), (3 << 30, "3GiB"), (1536, "1536B")])
def test_sizes_are_printed_in_units_that_divide_them(size: int, text: str) -> None:
    assert format_size(size) == text
