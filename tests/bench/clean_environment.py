# SPDX-License-Identifier: Apache-2.0
"""Import it before numpy: takes settings of BLAS, OpenMP and the like out of the environment, which
BLAS reads when it is loaded. The processes that we start inherit what is left."""

import os

SETTINGS = ("OPENBLAS_", "GOTO_", "OMP_", "GOMP_", "MKL_", "KMP_", "ORT_", "OV_", "DNNL_",
            "ONEDNN_", "ATTND_")
DROPPED = sorted(name for name in os.environ if name.startswith(SETTINGS)
                 and name not in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"))
for name in DROPPED:
    del os.environ[name]
