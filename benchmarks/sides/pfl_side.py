"""pfl-research: starts pfl_simulation.py the way pfl's guide on fast simulations has it, once per core.

Knows torchrun's command line. Variant `single`: one process, as pfl runs when it is not told otherwise.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROCESSES = 2


def main() -> None:
    simulation = [str(Path(__file__).with_name("pfl_simulation.py")), *sys.argv[1:]]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
    command = simulation if "single" in sys.argv else [*torchrun, *simulation]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.execv(
        sys.executable, [sys.executable, *command]
    )  # the same process, so its start time and memory stay ours


if __name__ == "__main__":
    main()
