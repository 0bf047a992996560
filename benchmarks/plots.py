"""Plots of the benchmarks."""

from __future__ import annotations

from pathlib import Path


def plot_bars(values: dict[str, float], path: Path, label: str, form: str = "{:,.0f}") -> None:
    """Plots bars, the longest at the top; those of Shardmill have another colour."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = sorted(values, key=values.__getitem__)
    figure, axes = plt.subplots(figsize=(7, 0.8 + 0.3 * len(names)), layout="constrained")
    colors = ["#0b7285" if "hardmill" in name else "#adb5bd" for name in names]
    bars = axes.barh(names, [values[name] for name in names], color=colors)
    axes.bar_label(bars, [form.format(values[name]) for name in names], padding=4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(label)
    axes.margins(x=0.12)
    figure.savefig(path, dpi=150)
    plt.close(figure)
