"""`python -m moerl_runtime.preflight.cuda_probe`: one trivial operation on every GPU, through libcuda alone.

In a process of its own: a driver that is not ready can take the process with it, and its state stays in the process. The
error numbers are CUDA's (cuda.h): 802 and 803 look the same to torch and have nothing to do with each other.
"""

from __future__ import annotations

import ctypes
import json

LIBRARY = "libcuda.so.1"
BYTES = 1 << 20
NO_LIBRARY = -1


def probe(library: str = LIBRARY) -> dict[str, int]:
    """`code` of the first call that failed, 0 when none did, and the number of GPUs it went through."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return {"code": NO_LIBRARY, "gpus": 0}
    count = ctypes.c_int()
    code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    done = 0
    while code == 0 and done < count.value:
        code = _touch(cuda, done)
        done += code == 0
    return {"code": code, "gpus": done}


def _touch(cuda: ctypes.CDLL, ordinal: int) -> int:
    """Allocates, fills and frees a little memory of one GPU."""
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    code: int = cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    code = code or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if code:
        return code
    code = cuda.cuCtxSetCurrent(context) or cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(BYTES))
    if code == 0:
        code = cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(1), ctypes.c_size_t(BYTES)) or cuda.cuCtxSynchronize()
        code = cuda.cuMemFree_v2(memory) or code
    cuda.cuDevicePrimaryCtxRelease_v2(device)
    return code


if __name__ == "__main__":
    print(json.dumps(probe()))
