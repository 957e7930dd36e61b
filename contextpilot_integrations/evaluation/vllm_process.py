"""The process group in which vLLM serves: run as a file, so that nothing but vLLM is imported.

The arguments are those of vLLM's OpenAI server. The group ends with its standard input, so neither the server
nor its engine can outlive the process that started it.
"""

import os
import runpy
import signal
import threading


def _end_with_standard_input() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    # The `vllm` command looks for package metadata of that name, which the CPU build does not have.
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
