"""Serves the launcher at the other end of standard input and output."""

from farandole.agent.agent import main

if __name__ == "__main__":
    main()
