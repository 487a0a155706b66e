"""`python -m rollscope`: the same as the console script."""

import sys

from rollscope import main

if __name__ == "__main__":
    sys.exit(main())
