import sys

if not sys.flags.safe_path:
    del sys.path[0]  # `python -m` puts the current folder there, and what lies in it may be anybody's

from fedsieve.cli import main

main()
