"""The colours of pictures, on white and on black. Those of the report are in report_page/style.css."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Palette:
    """`runs` are used one after the other, and again from the first."""

    background: str
    ink: str
    muted: str
    edge: str
    grid: str
    fault: str
    runs: tuple[str, ...]

    def run(self, index: int) -> str:
        return self.runs[index % len(self.runs)]

    def settings(self) -> Any:
        """For matplotlib's rc_context."""
        return {
            "font.family": "DejaVu Sans",
            "font.size": 9.5,
            "text.color": self.ink,
            "axes.labelcolor": self.ink,
            "axes.edgecolor": self.edge,
            "axes.facecolor": self.background,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": self.grid,
            "grid.linewidth": 0.8,
            "axes.axisbelow": True,
            "xtick.color": self.edge,
            "ytick.color": self.edge,
            "xtick.labelcolor": self.ink,
            "ytick.labelcolor": self.ink,
            "figure.facecolor": self.background,
            "agg.path.chunksize": 20000,
            "text.parse_math": False,
        }


LIGHT = Palette(
    background="#ffffff",
    ink="#2f3437",
    muted="#8b9298",
    edge="#c3c9ce",
    grid="#e6e9ec",
    fault="#c8321f",
    runs=("#2563a8", "#d9622b", "#3c8d5a", "#8a4fa3", "#b8860b", "#c2476b", "#4f7f8f", "#6b6b6b"),
)
DARK = Palette(
    background="#161a20",
    ink="#e5e9ee",
    muted="#8f99a5",
    edge="#4a535e",
    grid="#272d35",
    fault="#ff7a66",
    runs=("#6ca9ec", "#f2935f", "#6fc58f", "#c08ada", "#dcb23f", "#ee7d9e", "#72b7ca", "#a9b0b8"),
)
