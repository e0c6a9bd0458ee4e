"""``python -m torch_lms``: the doctor. ``python -m torch_lms run ...``: a program under LMS."""

import sys

if sys.argv[1:2] == ["run"]:
    from ._run import main as run

    sys.exit(run(sys.argv[2:]))

from .doctor import main

sys.exit(main())
