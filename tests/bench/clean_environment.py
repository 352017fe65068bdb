# SPDX-License-Identifier: Apache-2.0
"""Removes settings for BLAS, OpenMP and similar libraries from the environment. Import it before
numpy, because BLAS reads them when it is loaded. Child processes inherit the clean environment."""

import os

SETTINGS = ("OPENBLAS_", "GOTO_", "OMP_", "GOMP_", "MKL_", "KMP_", "ORT_", "OV_", "DNNL_",
            "ONEDNN_", "ATTND_")
DROPPED = sorted(name for name in os.environ if name.startswith(SETTINGS)
                 and name not in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"))
for name in DROPPED:
    del os.environ[name]
