"""`python -m fedmix`, which is the command `fedmix`."""

from fedmix.cli import main

main()
