"""Run llama.cpp's server in a process of its own: python llama_cpp_server.py FILE CONTEXT KEY

Prints its address, and ends when its standard input is closed. A file that llama.cpp refuses can end the process.
"""

import sys


def main(path: str, context: str, key: str) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.warmup = int(context), 1, False
    # The most precise arithmetic that it has: a cache in float32, and attention written out.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    # One thread: several wait for each other in busy loops, which takes minutes on a machine with other work.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [key]
    params.verbosity = 1  # errors only
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
