"""Numbers as people read them."""

from __future__ import annotations

PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def scaled(value: float, unit: str) -> str:
    """Three digits and an SI prefix: 4.27 TFLOP."""
    for factor, prefix in PREFIXES:
        if value >= factor:
            return f"{digits(value / factor)} {prefix}{unit}"
    return f"{digits(value)} {unit}"


def digits(value: float) -> str:
    """Three significant digits without an exponent; whole numbers from 100 on."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
