"""The demo's table and plot, made when both runs have ended."""

from pathlib import Path

from lm.train import Run

TOLERANCE = 1e-5


def relative_difference(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), abs(b))


def table(runs: list[Run]) -> str:
    rows = [("", "first loss", "last loss", "held-out loss", "tokens/s", "collectives per step")]
    for run in runs:
        ends = (f"{loss:.6f}" for loss in (run.losses[0], run.losses[-1], run.held_out))
        counts = f"{run.jaxring_collectives} jaxring, {run.xla_collectives} XLA"
        rows.append((run.name, *ends, f"{run.tokens_per_second:,.0f}", counts))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def problems(runs: list[Run], devices: int) -> list[str]:
    """Reasons to doubt that jaxring reduced its run's gradients or that both runs are the same; none if all is well."""
    found = []
    for run in runs:
        if run.losses[-1] >= run.losses[0]:
            found.append(f"{run.name}: the loss did not fall")
        if devices > 1 and run.name == "jaxring" and (run.xla_collectives or not run.jaxring_collectives):
            found.append("jaxring: the training step has collectives of XLA's, or none of jaxring's")
    if len(runs) == 2:
        ours, other = runs
        for what, a, b in (
            ("first loss", ours.losses[0], other.losses[0]),
            ("last loss", ours.losses[-1], other.losses[-1]),
            ("held-out loss", ours.held_out, other.held_out),
        ):
            if not relative_difference(a, b) <= TOLERANCE:
                found.append(f"{what}: {a:.8f} and {b:.8f} differ by more than {TOLERANCE:g} relative")
    return found


def plot(runs: list[Run], path: Path, title: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for run, style in zip(runs, ("-", "--"), strict=False):
        steps = range(1, len(run.losses) + 1)
        axes.plot(steps, run.losses, style, label=f"{run.name} (held-out {run.held_out:.4f})", linewidth=1.6)
    axes.set(xlabel="step", ylabel="training loss, nats per byte", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
