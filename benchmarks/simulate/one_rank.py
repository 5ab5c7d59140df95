"""Makes vLLM's engine in this process as one rank of a job.

    one_rank.py MODEL RANKS OPTION ...

Options are those of ``vllm serve`` that no engine in a process has, and are left out.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    LLM(
        sys.argv[1],
        load_format="dummy",
        distributed_executor_backend="external_launcher",
        tensor_parallel_size=int(sys.argv[2]),
        max_num_seqs=16,
        max_model_len=2048,
        gpu_memory_utilization=0.92,
    )
