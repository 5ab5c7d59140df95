"""Graph trees: compiled graphs replayed out of one pool of memory, safely.

Reading order, one idea a file:

=====================  ==================================================================
``device/protocol``    what the manager asks of a device; Note [Who does what: manager and
                       device]
``device/cuda``        CUDA graphs over the caching allocator's private pools
``device/cpu``         the CPU, where every tensor owns its memory
``planner``            offsets from sizes and lifetimes
``arena``              memory for CPU code, cut into blocks that own themselves
``arena_plan``         what of a program's memory comes out of the arena, and where
``arena_tensors``      tensors over arena memory: leased outputs, temporaries in a scratch
``function``           a function to be wrapped: model, static inputs, provenance; its modes
``storage_ref``        weak references to storages: is this output still held?
``liveness``           which outputs of a path are live, and what a node expects of that
``generations``        when a new step begins and old outputs may be overwritten
``forwards``           which graphs' last forward ran without a graph
``inputs``             static, managed and copied inputs; copying; why a node does not fit
``outputs``            what an output is an alias of
``hand_out``           handing the outputs out after a replay; Note [Cached outputs]
``node_warmup``        one warm-up run
``node_recorded``      one recording: what was captured, and what of the path it relies on
``node_replay``        its replays: the hot path
``node_program``       its allocation program
``placement``          where a recording's, or an arena's, memory lies, for a profile
``pool_check``         does a pool hold just what the trees know?
``pool_debug``         what is known about the rest, for the error
``manager``            the tree: which function runs how
``path_state``         Note [The four states]
``torch_names``        torch's names for what nodes and the manager keep in another form
``recording``          calls that are no replays: warming up, recording, running plainly
``starting_over``      the pool as a whole: limits, giving it back, taking another one
``places``             why a function is not recorded at a place of the tree
``path_end``           what becomes of live outputs when their step is over
``leaves``             parameters whose gradients have to be found (torch before 2.12)
``errors``             what a user is told who touches memory that was reused
``recovery``           what happens when a warm-up or a capture fails
``settings``           what a user can choose
``torch_options``      torch's own options: what each means here
``moves``              Note [Inputs that keep moving]
``stopping``           functions that are recorded no more, recordings that go
``ledger``             everything the manager did, with reasons
``budget``             a limit on the pool: all recordings go, what is used again comes back
``attribution``        every byte of the pool explained
``container``          one manager per device and autograd-thread family
``given``              Note [Graphs in parts]: what a graph was given that has several
``entry``              ``cudagraphify``: the function that a compiler calls
``inductor``           ``use_in_inductor()``: plain ``mode="reduce-overhead"`` on these trees
``checks``             looking into a pool from outside
``_torch_compat``      every private or version-dependent name of torch that is used here
=====================  ==================================================================

Nothing below ``manager`` knows the device, and no device knows a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks import check_memory_pool, get_block_addrs, get_cudagraph_segments
    from .container import (
        TreeManagerContainer,
        get_container,
        get_manager,
        mark_warmup_incomplete,
        reset_cudagraph_trees,
    )
    from .entry import cudagraphify, cudagraphify_impl
    from .function import CompilationMode, FunctionID, GraphID
    from .generations import mark_step_begin
    from .given import tell_what_is_given
    from .inductor import InductorTrees, use_in_inductor
    from .manager import CUDAGraphTreeManager
    from .node_recorded import CUDAGraphNode
    from .node_warmup import CUDAWarmupNode
    from .outputs import (
        AliasesNewOutput,
        AliasesPriorGraphOutput,
        OutputAliasInfo,
        UnaliasedStorage,
    )
    from .settings import TreeSettings, configure
    from .storage_ref import StorageWeakRefWrapper

# Most importers of this package want one name, and some of them (reports) must not import torch.
_HOME = {
    "AliasesNewOutput": "outputs",
    "AliasesPriorGraphOutput": "outputs",
    "CUDAGraphNode": "node_recorded",
    "CUDAGraphTreeManager": "manager",
    "CUDAWarmupNode": "node_warmup",
    "CompilationMode": "function",
    "ExecutionState": "path_state",
    "FunctionID": "function",
    "GraphID": "function",
    "InductorTrees": "inductor",
    "OutputAliasInfo": "outputs",
    "StorageWeakRefWrapper": "storage_ref",
    "TreeManagerContainer": "container",
    "TreeSettings": "settings",
    "UnaliasedStorage": "outputs",
    "check_memory_pool": "checks",
    "configure": "settings",
    "cudagraphify": "entry",
    "cudagraphify_impl": "entry",
    "get_block_addrs": "checks",
    "get_container": "container",
    "get_cudagraph_segments": "checks",
    "get_manager": "container",
    "mark_step_begin": "generations",
    "mark_warmup_incomplete": "container",
    "reset_cudagraph_trees": "container",
    "tell_what_is_given": "given",
    "use_in_inductor": "inductor",
}

__all__ = [
    "AliasesNewOutput",
    "AliasesPriorGraphOutput",
    "CUDAGraphNode",
    "CUDAGraphTreeManager",
    "CUDAWarmupNode",
    "CompilationMode",
    "ExecutionState",
    "FunctionID",
    "GraphID",
    "InductorTrees",
    "OutputAliasInfo",
    "StorageWeakRefWrapper",
    "TreeManagerContainer",
    "TreeSettings",
    "UnaliasedStorage",
    "check_memory_pool",
    "configure",
    "cudagraphify",
    "cudagraphify_impl",
    "get_block_addrs",
    "get_container",
    "get_cudagraph_segments",
    "get_manager",
    "mark_step_begin",
    "mark_warmup_incomplete",
    "reset_cudagraph_trees",
    "tell_what_is_given",
    "use_in_inductor",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{home}"), name)
