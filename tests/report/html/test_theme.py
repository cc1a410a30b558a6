"""Colours that people with a colour vision deficiency can tell apart."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from kvdiag.report.html import theme

Floats = NDArray[np.float64]

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
# severity 1.0, on linear RGB.
DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
PAGES = {"light": (theme.CATEGORICAL, "#ffffff"), "dark": (theme.CATEGORICAL_DARK, "#171a21")}


def linear(colour: str) -> Floats:
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def oklab(rgb: Floats) -> Floats:
    """Return the perceptual coordinates of Ottosson (2020)."""
    first = np.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                      [0.0883024619, 0.2817188376, 0.6299787005]])  # fmt: skip
    second = np.array([[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
                       [0.0259040371, 0.7827717662, -0.8086757660]])  # fmt: skip
    return np.asarray(second @ np.cbrt(np.clip(first @ np.clip(rgb, 0, 1), 0, None)))


def contrast(one: str, other: str) -> float:
    light = sorted(float(np.dot([0.2126, 0.7152, 0.0722], linear(colour))) for colour in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_every_two_colours_differ(page: str, deficiency: str) -> None:
    seen = {colour: oklab(DEFICIENCIES[deficiency] @ linear(colour)) for colour in PAGES[page][0]}
    closest = min(
        (float(np.linalg.norm(seen[one] - seen[other])), one, other) for one, other in itertools.combinations(seen, 2)
    )
    assert closest[0] > 0.08, closest


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
@pytest.mark.parametrize("page", PAGES)
def test_the_two_periods_differ_much(page: str, deficiency: str) -> None:
    colours = PAGES[page][0]
    first, second = (
        oklab(DEFICIENCIES[deficiency] @ linear(colours[int(name.removeprefix("var(--c").removesuffix(")")) - 1]))
        for name in theme.PERIOD_COLOURS[:2]
    )
    assert float(np.linalg.norm(first - second)) > 0.15


@pytest.mark.parametrize("page", PAGES)
def test_every_colour_stands_out_from_the_page(page: str) -> None:
    colours, paper = PAGES[page]
    weakest = min((contrast(colour, paper), colour) for colour in colours)
    assert weakest[0] > 2.0, weakest
