"""`python -m farandole.launcher.keeper`, as a front starts it."""

from farandole.launcher.keeper.keeper import main

if __name__ == "__main__":
    main()
