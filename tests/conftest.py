"""What every test needs before its modules are imported."""

import os

# OpenMP reads this once, when torch or llama.cpp loads it. Without it llama.cpp's threads spin while they
# wait, and on a busy machine the tests with the real model take ten times longer.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
