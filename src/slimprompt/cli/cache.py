"""`slimprompt cache`: show and delete the image features on disk."""

from __future__ import annotations

import typer

from slimprompt.cli.printing import print_table, say, size

app = typer.Typer(help="Show or delete the image features on disk.", no_args_is_help=True)


@app.command()
def show() -> None:
    """List the feature banks on disk with their sizes."""
    from slimprompt.images.bank import cached_banks
    from slimprompt.storage import cache_dir

    banks = cached_banks()
    say(f"{cache_dir()}: {len(banks)} feature banks, {size(sum(bank.size for bank in banks))}")
    if banks:
        rows = [(bank.path.name, f"{bank.features:,}", size(bank.size)) for bank in banks]
        print_table(("bank", "features", "size"), rows, right=("features", "size"))


@app.command()
def clear(yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask for confirmation.")) -> None:
    """Delete all image features; they are computed again when needed."""
    from slimprompt.images.bank import cached_banks, clear_cached_banks

    total = sum(bank.size for bank in cached_banks())
    if not yes and not typer.confirm(f"Delete {size(total)} of image features?"):
        raise typer.Abort
    say(f"freed {size(clear_cached_banks())}")
