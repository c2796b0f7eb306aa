"""`python -m farandole.control.launcher.daemon`, as a client starts it."""

from farandole.control.launcher.daemon.daemon import main

if __name__ == "__main__":
    main()
