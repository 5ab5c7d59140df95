"""The object that torch's autograd engine talks to while a backward is captured.

Note [The protocol]
~~~~~~~~~~~~~~~~~~~
C++ (torch/csrc/dynamo/python_compiled_autograd.cpp) makes one object a capture by calling
the factory given to ``set_autograd_compiler`` and calls, on that object,

* ``begin_capture`` with everything that it lifted out of the autograd graph,
* for each autograd node, in the order of execution: ``set_node_origin``; ``unpack_hook`` for what
  saved-tensor hooks packed; the hooks before; one of ``apply_functional``,
  ``proxy_call_backward``, ``accumulate_grad`` or the copy-slices pair; ``validate_outputs``; the
  hooks after; ``accumulate`` where a gradient arrives where another one is already,
* ``end_capture``, whose result it caches and calls from then on, and ``close``.

``bind_function`` gives a node's C++ function a name, once a process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from . import _torch_compat, nodes
from .aot_backward import AotInliner
from .capture import CapturedBackward, Listener
from .engine_order import engine_order
from .errors import CaptureError
from .nodes import LAYOUT, VALUE, NodeOrigin, ValueInfo, of_output, of_sizes, value_of
from .passes import run_passes
from .runtime import runtime_wrapper
from .switch import THREAD
from .tracer import GraphTracer

CompilerFn = Callable[[GraphModule], Callable[..., Any]]
Gradients = list[torch.Tensor | None]


class AutogradCompilerInstance:
    """Captures one backward; can stand in for torch's class of the same name.

    Args:
        compiler_fn: gets the captured graph and returns what runs in its place, with the same
            arguments: ``nodes.PLACEHOLDERS``.
        cuda_graphs: of a graph with GPU tensors, CPU scalars go to the GPU too, so that it can
            be a CUDA graph; Inductor's own option ``triton.cudagraphs`` asks for it as well.
    """

    listeners: ClassVar[list[Listener]] = []
    """Those that are told of every capture in the process."""

    @_torch_compat.entered_by_dynamo
    def __init__(self, compiler_fn: CompilerFn, *, cuda_graphs: bool = False) -> None:
        self.compiler_fn = compiler_fn
        self.cuda_graphs = cuda_graphs
        self._left_dynamo = False
        # Of the node whose calls come: it is an autograd.Function, or may get None.
        self._may_return_none = False
        # What may be None -> what C++ demands of it: Note [Gradients that may be None].
        self._may_be_none: dict[Node, Any] = {}

    # --- begin and end --------------------------------------------------------------------

    @_torch_compat.entered_by_dynamo
    def begin_capture(
        self,
        inputs: list[torch.Tensor],
        sizes: Sequence[int],
        scalars: list[Any],
        origins: Sequence[Sequence[tuple[int, str]]],
        accumulate_grad: bool,
        check_nans: bool,
    ) -> tuple[str, list[torch.Tensor], list[Any], list[Any]]:
        """Start, with what C++ lifted out of the autograd graph; stand-ins for it are returned.

        Args:
            inputs: tensors: saved ones, parameters, gradients that come in.
            sizes: integers that may differ from run to run (with ``dynamic=True``).
            scalars: Python numbers that may differ.
            origins: for each of the three, the node that each entry belongs to; C++ fills
                them in only while its verbose logger is set.
            accumulate_grad: ``backward()``, not ``grad()``.
            check_nans: anomaly mode is on: of a backward that Python code has not begun.
        """
        _torch_compat.leave_dynamo()
        self._left_dynamo = True
        self._capturing = contextlib.ExitStack()
        THREAD.being_captured = True
        begun = self._capturing.enter_context(_torch_compat.new_capture())
        self.id, self._compile_context = begun
        self._tracer = tracer = GraphTracer()
        self._aot = AotInliner(tracer)
        self._capturing.callback(tracer.stop)
        self._calls: list[str] = []
        self._names: dict[int, str] = {}
        tracer.lift_tensors(inputs, origins[0])
        symbols = tracer.lift_sizes(sizes, origins[1])
        tracer.lift_scalars(scalars, origins[2])
        tracer.start()
        return str(self._compile_context.compile_id), inputs, symbols, scalars

    def end_capture(self, outputs: Sequence[Any]) -> tuple[Callable[..., Any], Any]:
        """Finish the graph and compile it: ``(runtime wrapper, compiled function)``.

        Raises:
            Exception: the tracer has refused something on the way.
        """
        THREAD.ran = False
        tracer = self._tracer
        tracer.stop()
        if tracer.refused is not None:
            raise tracer.refused
        lifted = tracer.lift(list(outputs))
        returned = [nodes.before_hooks(v) if isinstance(v, Node) else v for v in lifted]
        tracer.call(_torch_compat.run_final_callbacks, ())
        tracer.graph.output(returned)
        _torch_compat.log_before_passes(tracer.root, tracer.graph, self.id)
        entered = THREAD.entered
        used_sizes, to_cuda, removed = run_passes(
            tracer.graph,
            self.cuda_graphs or _torch_compat.inductor_cuda_graphs(),
            None if entered is None else engine_order(*entered, self._names),
        )
        module = GraphModule(tracer.root, tracer.graph, f"CompiledAutograd{self.id}")
        _torch_compat.steal_inputs(module)
        _torch_compat.log_graph(module, to_cuda, removed)
        capture = CapturedBackward(
            id=self.id,
            graph=module,
            calls=tuple(self._calls),
            used_sizes=used_sizes,
            inputs_to_cuda=to_cuda,
            disagreements=self._aot.disagreements,
        )
        for listener in tuple(self.listeners):
            listener.captured(capture)
        runtime = runtime_wrapper(capture, self.listeners, self._compile_context)
        self._capturing.close()
        compiled = self.compiler_fn(module)
        # Dynamo fails on a sparse input when its number of elements has changed: it asks for
        # strides. By then the normal engine cannot take over, so the graph runs as it is.
        sparse = any(LAYOUT in node.meta for node in module.graph.nodes)
        return runtime, module if sparse and _torch_compat.is_dynamos(compiled) else compiled

    @_torch_compat.entered_by_dynamo
    def close(self) -> None:
        """C++ is done with this object, or gave up: leave every mode."""
        if self._left_dynamo:
            self._left_dynamo = False
            self._capturing.close()
            _torch_compat.return_to_dynamo()

    log_compile_reasons = staticmethod(_torch_compat.log_reasons)
    """Logs why C++ found no cached graph; C++ says so only to its verbose logger."""

    def set_node_origin(self, node_name: str, nodecall_index: int, pyobj: Any) -> None:
        """The autograd node whose calls come next; ``pyobj`` if it is an autograd.Function's."""
        # What is raised until the end leaves stand-ins in the autograd graph, where saved tensors
        # were: the normal engine cannot take over.
        THREAD.ran = True
        aot_id = None if pyobj is None else _torch_compat.aot_id(pyobj)
        self._names[nodecall_index] = node_name
        self._calls.append(node_name if aot_id is None else f"{node_name}{aot_id}")
        self._tracer.in_python_node = pyobj is not None
        self._may_return_none = False
        self._tracer.origin = NodeOrigin(node_name, nodecall_index, aot_id)

    # --- nodes ----------------------------------------------------------------------------

    bind_function = staticmethod(_torch_compat.ops.add)
    """Name an autograd node's function."""

    def apply_functional(
        self,
        fn_name: str,
        grads: Sequence[Any],
        args: Sequence[Any],
        output_metadata: Sequence[Any],
    ) -> Gradients:
        """A C++ node, built in or custom: ``ops.<fn_name>(grads, *args)``."""
        tracer = self._tracer
        results: list[Node | None] = [None] * len(output_metadata)
        with tracer.refusing():
            arriving = tracer.lift(list(grads))
            self._may_return_none = any(g in self._may_be_none for g in arriving)
            function = _torch_compat.ops.get(fn_name)
            node = tracer.call(function, (arriving, *tracer.lift(tuple(args))))
            results = [tracer.part(node, i) for i in range(len(output_metadata))]
        return [
            # What the node computes is expected to have the size that validation demands.
            None if result is None else tracer.new_value(result, of_output(metadata))
            for result, metadata in zip(results, output_metadata, strict=True)
        ]

    def proxy_call_backward(
        self,
        inputs: Sequence[Any],
        output_metadatas: Sequence[Any],
        saved_tensors: Sequence[torch.Tensor],
        backward_idx: int,
        ctx: Any,
        maybe_backward_state_idx: int | None = None,
        opaque_object_indices: Sequence[int] = (),
    ) -> tuple[torch.Tensor | None, ...]:
        """An autograd.Function's node, AOTAutograd's among them.

        Args:
            inputs: gradients that arrive.
            output_metadatas: ``(layout, device, dtype, sizes)`` of each gradient it returns.
            backward_idx: index in ``hooks`` of its ctx, the node itself.
            maybe_backward_state_idx: the same of the hooks that Dynamo passed from the forward.
            opaque_object_indices: the same of saved objects that are no tensors.
        """
        tracer = self._tracer
        inputs = [self._without_none(gradient) for gradient in inputs]
        results: Sequence[Node | None] = [None] * len(output_metadatas)
        with tracer.refusing():
            if _torch_compat.aot_id(ctx) is not None:
                results = self._aot.inline(
                    ctx, inputs, saved_tensors, maybe_backward_state_idx, opaque_object_indices
                )
            elif _torch_compat.takes_boxed_grads(ctx):
                raise CaptureError(
                    f"{ctx._forward_cls.__name__} sets boxed_grads_call, and a captured graph "
                    f"cannot pass gradients in a box"
                )
            else:
                saved = tracer.lift(list(saved_tensors))
                arguments = (tracer.item("hooks", backward_idx), saved, *inputs)
                call = tracer.call(_torch_compat.call_backward, arguments)
                self._may_return_none = True
                results = [
                    None if metadata is None else tracer.part(call, i)
                    for i, metadata in enumerate(output_metadatas)
                ]
        gradients: Gradients = []
        for metadata, result in zip(output_metadatas, results, strict=False):
            if metadata is None or result is None:
                gradients.append(None)
                continue
            _, device, dtype, size = metadata
            known = value_of(result) or of_sizes(size, dtype, device)
            gradients.append(tracer.new_value(result, known))
        return tuple(gradients)

    def validate_outputs(
        self, _: Any, outputs: Sequence[Any], args: Sequence[Any], output_metadata: Sequence[Any]
    ) -> Gradients:
        """Sizes, dtypes and devices of gradients are checked, and adapted where they may differ.

        Of what an AOTAutograd graph computes they are known: what is as demanded needs no node, the
        rest is checked one by one, so that one can be accumulated before the next exists.
        """
        tracer = self._tracer
        if not any(o is not None for o in outputs):
            return list(outputs)
        validate = _torch_compat.ops.get("validate_outputs")
        one_by_one = tracer.origin is not None and tracer.origin.aot_id is not None
        call = None
        if not one_by_one:
            call = tracer.call(validate, (tracer.lift(list(outputs)), *tracer.lift(tuple(args))))
        validated: Gradients = []
        for i, (output, metadata) in enumerate(zip(outputs, output_metadata, strict=True)):
            wanted = of_output(metadata)
            if output is None:
                validated.append(None)
            elif call is not None:
                part = tracer.part(call, i)
                if self._may_return_none and metadata is not None:
                    self._may_be_none[part] = metadata
                validated.append(tracer.new_value(part, wanted))
            else:
                node = tracer.lift(output)
                if wanted is None or _certainly(value_of(node), wanted, metadata):
                    validated.append(output)
                    continue
                part = tracer.part(tracer.call(validate, ([node], [tracer.lift(metadata)])), 0)
                validated.append(tracer.new_value(part, wanted))
        return validated

    def accumulate(self, old_var: Any, new_var: Any) -> torch.Tensor:
        """Add two gradients that arrive at the same place."""
        tracer = self._tracer
        old, new = tracer.lift(old_var), tracer.lift(new_var)
        lacking = [self._may_be_none[g] for g in (old, new) if g in self._may_be_none]
        node = tracer.call(nodes.add_gradients if lacking else torch.add, (old, new))
        if len(lacking) == 2:
            self._may_be_none[node] = lacking[0]
        return tracer.new_value(node, value_of(old) or value_of(new))

    def accumulate_grad(self, variable: torch.Tensor, *rest: Any) -> torch.Tensor | None:
        """Accumulate a gradient into ``variable.grad``.

        Up to torch 2.12 ``(variable, grad, has_post_hooks) -> None``, and the current
        gradient is read when the graph runs; then ``(variable, variable_grad, grad,
        has_post_hooks) -> new gradient``, with the current gradient among the inputs.
        """
        tracer = self._tracer
        node = tracer.call(_torch_compat.call_accumulate_grad, tracer.lift((variable, *rest)))
        gradient = tracer.new_value(node, value_of(node.args[0]))
        return None if len(rest) == 2 else gradient

    def call_copy_slices_prologue(self, inputs: Sequence[Any], *geometry: Any) -> Gradients:
        """Before the function of a view that was written in place.

        ``geometry``: sizes, strides and offset of the base, then of the view.
        """
        tracer = self._tracer
        arriving = tracer.lift(inputs[0])
        metadata = self._may_be_none.get(arriving)
        plain, careful = _torch_compat.copy_slices_prologue, nodes.copy_slices_prologue_or_none
        prologue = plain if metadata is None else careful
        node = tracer.call(prologue, ([arriving], *tracer.lift(geometry)))
        whole, _, of_view = parts = [tracer.part(node, i) for i in range(3)]
        if metadata is not None:
            self._may_return_none = True
            self._may_be_none |= {whole: metadata, of_view: (metadata[0], geometry[3])}
        known = value_of(arriving)
        return [tracer.new_value(part, known if part is whole else None) for part in parts]

    def call_copy_slices_epilogue(
        self,
        needs_input_grad: Sequence[bool],
        result: torch.Tensor,
        res: Sequence[Any],
        grad_slice: torch.Tensor,
    ) -> Gradients:
        """After it: its gradient goes back into the base's."""
        tracer = self._tracer
        whole = tracer.lift(result)
        plain, careful = _torch_compat.copy_slices_epilogue, nodes.copy_slices_epilogue_or_none
        epilogue = careful if whole in self._may_be_none else plain
        arguments = (list(needs_input_grad), whole, *tracer.lift((list(res), grad_slice)))
        node = tracer.call(epilogue, arguments)
        return [tracer.new_value(tracer.part(node, i)) for i in range(len(needs_input_grad))]

    # --- hooks ----------------------------------------------------------------------------

    def unpack_hook(self, hook_id: int, data_id: int) -> torch.Tensor:
        """The unpack function of saved-tensor hooks."""
        packed = self._tracer.item("packed_data", data_id)
        return self._tracer.new_value(self._hook(hook_id, "unpack_hook", packed))

    def tensor_pre_hook(self, inputs: list[Any], hook_id: int, i: int) -> list[Any]:
        """``Tensor.register_hook``, on gradient ``i`` before its node runs."""
        node = self._hook(hook_id, "tensor_pre_hook", inputs[i])
        return self._replace(inputs, i, node)

    def cpp_tensor_pre_hook(self, inputs: list[Any], hook_id: int, i: int) -> list[Any]:
        """A hook as of ``tensor_pre_hook``, registered in C++ (``retain_grad()``)."""
        arguments = (hook_id, self._tracer.lift(inputs[i]))
        node = self._tracer.call(nodes.call_cpp_tensor_pre_hooks, arguments)
        return self._replace(inputs, i, node)

    def pre_hook(self, inputs: Sequence[Any], hook_id: int) -> Gradients:
        """``Node.register_prehook``, on all gradients of the node."""
        return self._parts_like(self._hook(hook_id, "pre_hook", tuple(inputs)), inputs)

    def post_hook(self, outputs: Sequence[Any], inputs: Sequence[Any], hook_id: int) -> Gradients:
        """``Node.register_hook``, on what the node returned."""
        node = self._hook(hook_id, "post_hook", tuple(outputs), tuple(inputs))
        return self._parts_like(node, outputs)

    def post_acc_grad_hook(self, input: torch.Tensor, hook_id: int) -> Gradients:
        """``Tensor.register_post_accumulate_grad_hook``, on the parameter."""
        node = self._hook(hook_id, "post_acc_grad_hook", input)
        return [self._tracer.new_value(node, value_of(self._tracer.lift(input)))]

    # --- helpers --------------------------------------------------------------------------

    def _hook(self, hook_id: int, kind: str, *args: Any) -> Node:
        arguments = (self._tracer.item("hooks", hook_id), *self._tracer.lift(args))
        return self._tracer.call(nodes.call_hook, arguments, {"hook_type": kind})

    def _replace(self, inputs: list[Any], i: int, node: Node) -> list[Any]:
        # No hook can make a gradient where none arrived.
        if inputs[i] is not None:
            inputs[i] = self._hooked(node, inputs[i])
        return inputs

    def _hooked(self, node: Node, before: Any) -> torch.Tensor:
        """Tensor that stands for ``node``, the gradient that hooks made of ``before``."""
        given = self._tracer.lift(before)
        if given in self._may_be_none:
            self._may_be_none[node] = self._may_be_none[given]
        return self._tracer.new_value(node, value_of(given))

    def _without_none(self, gradient: Any) -> Any:
        """The node of a gradient for what takes no None."""
        node = self._tracer.lift(gradient)
        metadata = self._may_be_none.get(node) if isinstance(node, Node) else None
        if metadata is None or (wanted := _torch_compat.output_size(metadata)) is None:
            return node
        sizes, dtype, device = wanted
        arguments = (node, self._tracer.lift(list(sizes)), dtype, device)
        zeros = self._tracer.call(nodes.zeros_for_none, arguments)
        if VALUE in node.meta:
            zeros.meta[VALUE] = node.meta[VALUE]
        return zeros

    def _parts_like(self, node: Node, values: Sequence[Any]) -> Gradients:
        return [
            None if value is None else self._hooked(self._tracer.part(node, i), value)
            for i, value in enumerate(values)
        ]


def _certainly(have: ValueInfo | None, wanted: ValueInfo, metadata: Any) -> bool:
    """Tells whether a gradient is as demanded at every size, so that its check does nothing."""
    return (
        have is not None
        and have.exact
        and all(isinstance(s, int) for s in metadata[1])
        and (have.shape, have.dtype, have.device) == (wanted.shape, wanted.dtype, wanted.device)
    )
