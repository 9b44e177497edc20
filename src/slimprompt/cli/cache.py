"""`slimprompt cache`: show and delete the image features on disk."""

from __future__ import annotations

import typer

from slimprompt.cli.help import App
from slimprompt.cli.options import OutputFormat
from slimprompt.cli.printing import Format, emit, say, size
from slimprompt.errors import count

app = App(help="Show or delete the image features on disk.", no_args_is_help=True)


@app.command()
def show(format: OutputFormat = Format.table) -> None:
    """List the feature banks on disk with their sizes, in bytes for JSON and CSV."""
    from slimprompt.files import cache_dir
    from slimprompt.images.store import cached_banks

    banks = cached_banks()
    if format is Format.table:
        say(f"{cache_dir()}: {count(len(banks), 'feature bank')}, {size(sum(bank.size for bank in banks))}")
    rows = [{"bank": bank.path.name, "features": bank.features, "size": bank.size} for bank in banks]
    emit(rows, format, columns={"bank": str, "features": "{:,}".format, "size": size})


@app.command()
def clear(yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask for confirmation.")) -> None:
    """Delete all image features, which are computed again when needed, and what killed commands left in the cache."""
    from slimprompt.files import cache_dir, remove_leftovers
    from slimprompt.images.store import cached_banks, clear_cached_banks

    total = sum(bank.size for bank in cached_banks())
    if not yes and not typer.confirm(f"Delete {size(total)} of image features?"):
        raise typer.Abort
    say(f"freed {size(clear_cached_banks())}")
    folders = [path for path in (cache_dir(), *cache_dir().glob("*")) if path.is_dir()]
    if removed := sum(remove_leftovers(folder) for folder in folders):
        say(f"removed {count(removed, 'leftover')} of killed commands")
