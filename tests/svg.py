"""Read the text of a figure."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from slimprompt.report.plotting import Figure


def texts(figure: Figure) -> list[str]:
    """Every text in the SVG."""
    return [one.text or "" for one in ET.fromstring(figure.svg).iter() if one.tag.endswith("}text")]
