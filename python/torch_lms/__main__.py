"""``python -m torch_lms``: the doctor."""

import sys

from .doctor import main

sys.exit(main())
