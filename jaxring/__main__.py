"""`python -m jaxring` is `jaxring`."""

import sys

from jaxring.cli import main

sys.exit(main())
