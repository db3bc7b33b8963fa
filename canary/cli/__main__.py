"""`python -m canary.cli`, for the processes that Canary starts itself."""

from canary.cli import main

main()
