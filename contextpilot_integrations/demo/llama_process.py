"""The process in which llama.cpp serves: run as a file, so that nothing but xllamacpp is imported.

Settings come as JSON in the first argument; the address goes out as one line; the server ends with its
standard input, so it cannot outlive the process that started it.
"""

import json
import sys


def serve() -> None:
    """Start the server, say where it is, and keep it until standard input ends."""
    import xllamacpp

    settings = json.loads(sys.argv[1])
    params = xllamacpp.CommonParams()
    params.model.path = settings["weights"]
    params.model_alias = {settings["model"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = settings["n_ctx"]
    params.n_parallel = settings["n_parallel"]
    params.kv_unified = settings["kv_unified"]
    params.n_cache_reuse = 0  # Pure prefix caching: later chunks are not moved.
    params.cache_ram_mib = settings["cache_ram_mib"]
    params.cpuparams.n_threads = settings["n_threads"]
    params.cpuparams_batch.n_threads = settings["n_threads"]
    params.verbosity = 0
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    serve()
