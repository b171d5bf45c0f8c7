"""Time on the GPU between two CUDA events."""
import torch


def elapsed_us(call, times=1):
    """Microseconds that what `times` calls launch on the current stream takes, together; waits for it."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3
