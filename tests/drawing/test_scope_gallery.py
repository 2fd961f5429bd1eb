"""The picture of the named norms: what it shows is what the scopes say."""

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from normscope.drawing.scopes.gallery import GALLERY, GalleryEntry, gallery_svg

IMAGE = Path(__file__).parents[2] / "docs" / "images" / "scopes.svg"


def test_the_image_in_the_docs_is_up_to_date() -> None:
    made_by = "normscope draw gallery --svg docs/images/scopes.svg"
    assert IMAGE.read_text(encoding="utf-8") == gallery_svg(), f"make it again: {made_by}"


@pytest.mark.parametrize(
    ("entry", "letters"),
    list(zip(GALLERY, ["abcdefgh", "aaaabbbb", "abcdabcd", "abcdefgh", "aabbccdd"], strict=True)),
    ids=lambda value: value.title if isinstance(value, GalleryEntry) else value,
)
def test_the_top_of_each_block(entry: GalleryEntry, letters: str) -> None:
    """Channels (or tokens) from left to right, the first sample and then the second."""
    root = ElementTree.fromstring(gallery_svg((entry,)))
    assert "".join(node.text or "" for node in root.findall(".//{*}text") if node.get("class") == "letter") == letters
    assert math.prod(entry.plan.statistics_shape) == len(set(letters))


@pytest.mark.parametrize("entry", GALLERY, ids=lambda entry: entry.title)
def test_three_faces_of_each_block(entry: GalleryEntry) -> None:
    root = ElementTree.fromstring(gallery_svg((entry,)))
    paths = [node.attrib["d"] for node in root.findall(".//{*}path")]
    assert len(paths) == len(set(paths)) == 4 * 2 + 4 * 9 + 2 * 9  # top, front and side of 4 x 9 x 2 cells


def test_the_description_for_screen_readers() -> None:
    root = ElementTree.fromstring(gallery_svg())
    description = root.findtext("{*}desc") or ""
    assert "GroupNorm in a convnet: n (g [c]) [...], 4 means, each over 18 values." in description
