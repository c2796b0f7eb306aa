"""`python -m farandole.launcher.daemon`, as a client starts it."""

from farandole.launcher.daemon.daemon import main

if __name__ == "__main__":
    main()
