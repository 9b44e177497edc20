"""`slimprompt cache`: show and delete the image features on disk."""

from __future__ import annotations

import typer

from slimprompt.cli.help import App
from slimprompt.cli.printing import count, print_table, say, size

app = App(help="Show or delete the image features on disk.", no_args_is_help=True)


@app.command()
def show() -> None:
    """List the feature banks on disk with their sizes."""
    from slimprompt.files import cache_dir
    from slimprompt.images.store import cached_banks

    banks = cached_banks()
    say(
        f"{cache_dir()}: {len(banks)} feature {'bank' if len(banks) == 1 else 'banks'}, {size(sum(bank.size for bank in banks))}"
    )
    if banks:
        rows = [(bank.path.name, f"{bank.features:,}", size(bank.size)) for bank in banks]
        print_table(("bank", "features", "size"), rows, right=("features", "size"))


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
