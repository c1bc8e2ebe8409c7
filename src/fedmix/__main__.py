"""`python -m fedmix` is `fedmix`."""

from fedmix.cli import main

if __name__ == "__main__":
    main()
