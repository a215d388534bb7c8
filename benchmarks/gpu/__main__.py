"""`python -m benchmarks.gpu --out DIR`."""

import sys

from benchmarks.gpu.suite import main

sys.exit(main())
