"""`python -m slimprompt` is the command `slimprompt`."""

from slimprompt.cli import main

if __name__ == "__main__":
    main()
