"""Everything private of torch that the public package and ``memprof doctor`` touch."""

from __future__ import annotations


def find_cpp_compiler() -> str:
    """The C++ compiler that Inductor would use; raises ``RuntimeError`` if there is none."""
    from torch._inductor import cpp_builder

    return str(cpp_builder.get_cpp_compiler())


def backend_names() -> list[str]:
    """Backends that ``torch.compile`` knows, entry points included."""
    import torch._dynamo

    return list(torch._dynamo.list_backends(exclude_tags=None))


def accelerators() -> list[str]:
    """Devices other than the CPU, e.g. ``cuda:0 (NVIDIA H100, 80.0 GiB)``; the kind alone where
    torch has no properties of it, as of ``mps``."""
    import torch

    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return []
    properties = getattr(torch.get_device_module(kind), "get_device_properties", None)
    if properties is None:
        return [kind.type]
    found = []
    for i in range(torch.accelerator.device_count()):
        p = properties(i)
        found.append(f"{kind.type}:{i} ({p.name}, {p.total_memory / 2**30:.1f} GiB)")
    return found


def why_no_cuda_graphs() -> str | None:
    """Why CUDA graphs cannot be recorded here, None if they can."""
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch is built without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return None
