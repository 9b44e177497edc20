"""`slimprompt cache`: what the image features on disk take, and a way to delete them."""

from __future__ import annotations

import typer

app = typer.Typer(help="Image features kept on disk: show their size, clear them.", no_args_is_help=True)


@app.command()
def show() -> None:
    """List the feature banks on disk with their sizes."""
    from rich.console import Console
    from rich.table import Table

    from slimprompt.images.bank import cached_banks
    from slimprompt.storage import cache_dir

    banks = cached_banks()
    typer.echo(f"{cache_dir()}: {len(banks)} feature banks, {sum(bank.size for bank in banks) / 1e6:,.1f} MB")
    if banks:
        table = Table("bank", box=None)
        table.add_column("features", justify="right")
        table.add_column("MB", justify="right")
        for bank in banks:
            table.add_row(bank.path.name, f"{bank.features:,}", f"{bank.size / 1e6:,.1f}")
        Console().print(table)


@app.command()
def clear(yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask.")) -> None:
    """Delete all image features; they are encoded again when needed."""
    from slimprompt.images.bank import cached_banks, clear_cached_banks

    size = sum(bank.size for bank in cached_banks())
    if not yes and not typer.confirm(f"Delete {size / 1e6:,.1f} MB of image features?"):
        raise typer.Abort
    typer.echo(f"freed {clear_cached_banks() / 1e6:,.1f} MB")
