"""`python -m jaxring.cli` is `jaxring`."""

import sys

from jaxring.cli import main

sys.exit(main())
