"""Values mode: kernels really compute. Triton kernels run as C made from their TTIR (ttir.py); every aten operator with
CUDA kernels first runs as always (checks, allocations, launches that do nothing), then its CPU kernel computes the result on
CPU tensors that alias the device memory - at once, or as a graph node at every launch when the stream is being captured."""
import ctypes, functools, glob, hashlib, itertools, os, re, subprocess, sys, threading, traceback
import torch
from torch.utils._pytree import tree_map, tree_leaves
from . import ttir as simgpu_ttir
from ..after_import import after_import
from ..control import library
from ..overrides import kernel_of

missing = []            # kernels and operators that computed nothing
errors = []             # exceptions of operators in graph launches
_fns, _ids, _tl = {}, itertools.count(1), threading.local()
_l = library()

def _missing(what):
    if what not in missing:
        missing.append(what); print("[simgpu] no values for", what, file=sys.stderr)

# ---------------------------------------------------------------- Triton
_ttir, _libs = {}, []
CFLAGS = ["-O1", "-march=native", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off", "-fPIC", "-shared", "-w"]

def _build(text):
    src, sizes = simgpu_ttir.to_c(text)
    d = os.path.join(os.environ.get("TRITON_CACHE_DIR") or os.path.expanduser("~/.triton/cache"), "simgpu")
    os.makedirs(d, exist_ok=True)
    so = os.path.join(d, hashlib.sha256((src + str(CFLAGS)).encode()).hexdigest()[:32] + ".so")
    if not os.path.exists(so):
        tmp = f"{so}.{os.getpid()}.{threading.get_ident()}"
        with open(tmp + ".c", "w") as f: f.write(src)
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        r = subprocess.run(["gcc", *CFLAGS, "-o", tmp, tmp + ".c", "-lm"], capture_output=True, text=True, env=env)
        if r.returncode: raise simgpu_ttir.Unsupported(f"{tmp}.c does not compile: {r.stderr[:500]}")
        os.replace(tmp, so); os.unlink(tmp + ".c")
    lib = ctypes.CDLL(so); _libs.append(lib)
    return ctypes.cast(lib.run, ctypes.c_void_p).value, sizes

def _load(cubin):                           # the files of Triton's cache lie side by side
    ttir = os.path.splitext(cubin)[0] + ".ttir"
    if os.path.exists(cubin) and os.path.exists(ttir):
        with open(cubin, "rb") as f, open(ttir) as g: _ttir[_l.simgpu_image_hash(f.read())] = g.read().__str__

def _search(name):                          # loaded by something that has no hook here (C++ wrapper)
    for d in (os.environ.get("TRITON_CACHE_DIR"), os.environ.get("TORCHINDUCTOR_CACHE_DIR", "/nonexistent") + "/triton/*", os.path.expanduser("~/.triton/cache")):
        for p in glob.glob(f"{d}/*/{glob.escape(name)}.cubin") if d else (): _load(p)

@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64)
def _resolve(handle, name, image):          # the first launch of a kernel
    try:
        if image not in _ttir: _search(name.decode())
        fn, sizes = _build(_ttir[image]())
        _l.simgpu_bind(handle, fn, (ctypes.c_int * len(sizes))(*sizes), len(sizes))
    except Exception as e:
        _missing(f"kernel {name.decode()}: {type(e).__name__}: {e}")
        if os.environ.get("SIMGPU_DEBUG"): traceback.print_exc()

def _hook_triton(mod):                      # whoever loads a cubin later: its content leads to its TTIR
    init = mod.CompiledKernel._init_handles
    def _init_handles(self):
        if self.module is None: _ttir[_l.simgpu_image_hash(self.kernel)] = lambda: self.asm["ttir"]
        init(self)
    mod.CompiledKernel._init_handles = _init_handles

def _hook_static(mod):                      # Inductor's own launcher
    K = getattr(mod, "StaticallyLaunchedTritonKernel", None) or mod.StaticallyLaunchedCudaKernel
    load = K.load_kernel
    def load_kernel(self, device):
        if self.function is None and self.cubin_path: _load(self.cubin_path)
        load(self, device)
    K.load_kernel = load_kernel

# ---------------------------------------------------------------- operations that are Python functions
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_int)
def _python(i, replay):
    try: _fns[i](); return 0
    except Exception as e:
        errors.append(e); traceback.print_exc()
        return 710                          # cudaErrorAssert

def _submit(dev, fn):
    stream = torch._C._cuda_getCurrentRawStream(dev)
    if not _l.simgpu_capture_id(stream): return fn()
    buf = (ctypes.c_uint64 * 64)()
    for k in range(_l.simgpu_dropped(buf, ctypes.c_size_t(64))): _fns.pop(buf[k], None)
    i = next(_ids); _fns[i] = fn
    _l.simgpu_submit_python(stream, i)

# ---------------------------------------------------------------- aten
_cpu = torch.device("cpu")
def alias(t):
    """A CPU tensor on the same memory."""
    if not isinstance(t, torch.Tensor): return t
    if t.device.type != "cuda":             # an inference tensor may be written to in that mode alone
        return torch.empty(0, dtype=t.dtype).set_(t.untyped_storage(), t.storage_offset(), t.size(), t.stride()) if t.is_inference() and t.is_cpu and t.layout == torch.strided else t
    if t.layout != torch.strided: raise NotImplementedError("sparse")
    size, stride = t.size(), t.stride()
    if t.numel() == 0: return torch.empty_strided(size, stride, dtype=t.dtype, device=_cpu)
    n = (1 + sum((a - 1) * b for a, b in zip(size, stride))) * t.dtype.itemsize
    s = torch._C._construct_storage_from_data_pointer(t.data_ptr(), _cpu, n)
    a = torch.empty(0, dtype=t.dtype, device=_cpu).set_(s, 0, size, stride)
    if t.is_conj(): a = torch._conj(a)
    if t.is_neg(): a = torch._neg_view(a)
    return a

def _to_cpu(x):
    if isinstance(x, torch.Tensor): return alias(x)
    if isinstance(x, torch.device): return _cpu
    return x

class _quiet:                               # CPU kernels run without autograd, modes and inference tensors
    def __enter__(s):
        s.g = []                            # one after the other: some act when constructed, and the first restores the whole dispatch state
        for mk in (lambda: torch.inference_mode(False), torch.no_grad, torch._C.DisableTorchFunction, torch._C._DisableTorchDispatch, torch._C._DisableFuncTorch):
            g = mk(); g.__enter__(); s.g.append(g)
    def __exit__(s, *a):
        for g in reversed(s.g): g.__exit__(*a)

def _mix(*v): return int.from_bytes(hashlib.blake2b(repr(v).encode(), digest_size=7).digest(), "little")
_increment, _drawn = {}, {}                 # by operator and shapes: how far it moves the offset (seen in eager runs); by capture: the states it drew from

class _Drawn:                               # one state of a generator in one capture
    def __init__(s, gen): s.state, s.at, s.salt, s.base = gen.graphsafe_get_state(), 0, 0, None

def _word(a): return ctypes.c_uint64.from_address(a).value
def _impl(gen): return _word(id(gen) + 16)  # the at::Generator after the head of the Python object
@functools.cache
def _state_at():                            # where a CUDAGeneratorImpl has the pointer to its state: several are looked at, since what lies between its fields is chance
    gens = [torch.Generator("cuda") for _ in range(8)]
    views = [g.graphsafe_get_state() for g in gens]
    at = lambda gs, k: [_word(_impl(g) + k) for g in gs]
    return next(k for k in range(8, 160, 8) if at(gens, k) == at(views, k) and len(set(at(gens, k))) == len(gens))

def _rng(dev, gen, key):
    """-> (function giving a CPU generator, function to call after the operator ran). The numbers are a function of seed and
    Philox offset, as on a device: a replay gives what the eager run would have given at the same state of the generator.
    Which state a generator has now is what counts in a capture: it may have been swapped for another one, and is put back."""
    gen = gen or torch.cuda.default_generators[dev]
    cap = _l.simgpu_capture_id(torch._C._cuda_getCurrentRawStream(dev))
    if not cap:
        seed, off = gen.initial_seed(), gen.get_offset()
        def done(): _increment[key] = gen.get_offset() - off
        return lambda: torch.Generator("cpu").manual_seed(_mix(seed, off)), done
    states = _drawn.setdefault(cap, {})
    d = states.get(k := _word(_impl(gen) + _state_at())) or states.setdefault(k, _Drawn(gen))
    at, salt = d.at, d.salt
    def done(): d.at += _increment.get(key, 0); d.salt += key not in _increment
    def now(): return torch.Generator("cpu").manual_seed(_mix(d.state.initial_seed(), d.base + at, *[salt] * bool(salt)))
    return now, done

def _hook_graph():                          # replay_prologue moves the offsets before the launch; the nodes want those before that
    G = torch.cuda.CUDAGraph
    begin, end, replay = G.capture_begin, G.capture_end, G.replay
    def capture_begin(self, *a, **k): _state_at(); return begin(self, *a, **k)      # no generator can be made in a capture
    def capture_end(self):
        cap = _l.simgpu_capture_id(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()))
        self._simgpu_drawn = list(_drawn.pop(cap, {}).values())
        return end(self)
    def replay_(self):
        for d in getattr(self, "_simgpu_drawn", ()): d.base = d.state.get_offset()
        return replay(self)
    G.capture_begin, G.capture_end, G.replay = capture_begin, capture_end, replay_

def _compute(op, args, kw):
    try: return op(*args, **kw)
    except RuntimeError as e:               # no CPU kernel for this precision: compute in float32
        if not re.search(r"not implemented for '?\"?(Half|BFloat16)|not supported.*(Half|BFloat16)|for 'Half'", str(e)): raise
    low = (torch.float16, torch.bfloat16)
    pairs = []
    def up(x):
        if isinstance(x, torch.Tensor) and x.dtype in low: pairs.append((x, x.float())); return pairs[-1][1]
        return torch.float32 if isinstance(x, torch.dtype) and x in low else x
    r = op(*tree_map(up, args), **tree_map(up, kw))
    if isinstance(op, torch._ops.OpOverload) and any(a.alias_info and a.alias_info.is_write for a in op._schema.arguments):
        for x, u in pairs: x.copy_(u)
    return r

def _assign(out, res):
    for o, r in zip(out, res):
        if isinstance(o, torch.Tensor) and isinstance(r, torch.Tensor) and r.numel() and o is not r:
            if o.shape == r.shape: o.copy_(r)
            elif o.numel() == r.numel(): o.copy_(r.reshape(o.shape))

# ---- operators without a CPU kernel: function(rng, args by name, outputs) -> list of results
def _attn(q, k, v, bias, p, causal, scale, gen):
    scale = scale if scale is not None else q.shape[-1] ** -0.5
    q, k, v = q.float(), k.float(), v.float()
    if k.shape[1] != q.shape[1]: k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * scale
    if bias is not None: s = s + bias.float()
    if causal: s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), float("-inf"))
    w = s.softmax(-1)
    if p: w = w * (torch.rand(w.shape, generator=gen) >= p) / (1 - p)
    return w @ v, s.logsumexp(-1)

def _attn_fwd(rng, a, outs, seed_at):
    seed = rng().initial_seed() & (2**31 - 1)
    o, lse = _attn(a["query"], a["key"], a["value"], a.get("attn_bias"), a.get("dropout_p", 0.0), a.get("is_causal", False), a.get("scale"), torch.Generator().manual_seed(seed))
    outs[0].copy_(o)
    if outs[1].numel(): outs[1][..., :lse.shape[-1]].copy_(lse)
    if a.get("dropout_p", 0.0): outs[seed_at].view(-1)[:1].view(torch.int64).fill_(seed)

def _attn_bwd(a, outs):
    qkv = [a[n].detach().float().requires_grad_() for n in ("query", "key", "value")]
    bias = a.get("attn_bias")
    if bias is not None: bias = bias.detach().float().requires_grad_()
    with torch.enable_grad():
        seed = int(a["philox_seed"].view(-1)[:1].view(torch.int64)) if a.get("dropout_p") else 0
        o, _ = _attn(*qkv, bias, a.get("dropout_p", 0.0), a.get("is_causal", False), a.get("scale"), torch.Generator().manual_seed(seed))
        go = a.get("grad_out", a.get("grad_out_"))
        g = torch.autograd.grad(o, qkv + ([bias] if bias is not None else []), go.float())
    for x, y in zip(outs, g):
        if isinstance(x, torch.Tensor) and x.numel(): x.copy_(y)

def _native_dropout(rng, a, outs):
    x, p = a["input"], a["p"]
    if a.get("train") is False: outs[0].copy_(x); outs[1].fill_(True); return
    m = torch.rand(x.shape, generator=rng()) >= p
    outs[1].copy_(m); outs[0].copy_(x * m / (1 - p) if p < 1 else torch.zeros_like(x))

# operators with another name on the CPU
REPLACE = {"cudnn_convolution": lambda x, w, pad, stride, dil, groups, *_, **__: torch.convolution(x, w, None, stride, pad, dil, False, [0] * len(pad), groups)}

CUSTOM = {"_scaled_dot_product_efficient_attention": lambda r, a, o: _attn_fwd(r, a, o, 2), "_scaled_dot_product_flash_attention": lambda r, a, o: _attn_fwd(r, a, o, 6),
          "_scaled_dot_product_efficient_attention_backward": lambda r, a, o: _attn_bwd(a, o), "_scaled_dot_product_flash_attention_backward": lambda r, a, o: _attn_bwd(a, o),
          "native_dropout": _native_dropout}
# the shape or the Python value of the result depends on data: the CPU kernel decides, also when another operator calls
DATA = {"nonzero", "nonzero.out", "masked_select", "masked_select.out", "_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
        "repeat_interleave.Tensor", "equal", "bincount"}
SKIP = re.compile(r"(empty|set_|resize|_resize|_efficientzero|record_stream|is_set_to|_local_scalar_dense|_fused_sdp_choice|_use_|_nested|_cudnn|cudnn_|miopen|_cslt|_validate|is_pinned|_pin|"
                  r"_has_same|_sparse|_to_sparse|_indices|_values|.*sparse|is_coalesced|_coalesce|_transform_bias|_c10d|_record)")

def _wrap(tensor_args, args):
    """Python kernels get wrapped numbers as numbers; C++ kernels want tensors (of the dtype that promotion comes to)."""
    num = [i for i in tensor_args if i < len(args) and isinstance(args[i], (int, float, complex))]
    if not num: return args
    args = list(args)
    ts = [args[i] for i in tensor_args if i < len(args) and args[i] is not None]
    dt = functools.reduce(torch.promote_types, [torch.result_type(t, n) for t, n in itertools.product([t for t in ts if isinstance(t, torch.Tensor)] or ts, [args[i] for i in num])])
    for i in num: args[i] = torch.tensor(args[i], dtype=dt, device=_cpu)
    return tuple(args)

def _by_name(op, args, kw):
    return {**dict(zip((x.name for x in op._schema.arguments), args)), **kw}

def _override(lib, name):
    pkt, _, ovl = name.partition(".")
    op = getattr(getattr(torch.ops.aten, pkt), ovl or "default")
    sch = op._schema
    names = [a.name for a in sch.arguments]
    write = any(a.alias_info and a.alias_info.is_write for a in sch.arguments)
    if any(r.alias_info and not r.alias_info.is_write for r in sch.returns) and not write: return      # a view
    orig = kernel_of("aten::" + name)
    custom, cpu_fn = CUSTOM.get(name), REPLACE.get(name, op)
    if custom is None and cpu_fn is op and not torch._C._dispatch_has_computed_kernel_for_dispatch_key("aten::" + name, "CPU"): custom = NotImplemented
    random = "generator" in names
    tensor_args = [i for i, a in enumerate(sch.arguments) if str(a.type) in ("Tensor", "Optional[Tensor]") and not a.kwarg_only]
    fresh = [not r.alias_info for r in sch.returns]

    def first_cuda(*xs):
        for x in tree_leaves(xs):
            if isinstance(x, torch.Tensor) and x.device.type == "cuda": return x.get_device()

    def data_dependent(ks, *args, **kw):
        dev = first_cuda(args, kw)
        if dev is None or _l.simgpu_capture_id(torch._C._cuda_getCurrentRawStream(dev)): return orig(ks, *args, **kw)
        with _quiet(): r = op(*tree_map(_to_cpu, args), **{k: _to_cpu(v) for k, v in kw.items() if k != "out"})
        if not isinstance(r, (torch.Tensor, tuple, list)): return r
        def put(c):
            d = torch.empty_strided(c.size(), c.stride(), dtype=c.dtype, device=torch.device("cuda", dev))
            with _quiet(): alias(d).copy_(c)
            return d
        r = tree_map(put, r)
        if "out" in kw:
            kw["out"].resize_(r.shape)
            with _quiet(): alias(kw["out"]).copy_(alias(r))
            return kw["out"]
        return r

    def impl(ks, *args, **kw):
        if getattr(_tl, "inside", False): return orig(ks, *_wrap(tensor_args, args), **kw)
        dev = first_cuda(args, kw)
        rng = None
        if dev is not None and (random or custom not in (None, NotImplemented)):
            key = (name, *[(tuple(t.shape), t.dtype) for t in tree_leaves((args, kw)) if isinstance(t, torch.Tensor)])
            rng, done = _rng(dev, _by_name(op, args, kw).get("generator"), key)
        _tl.inside = True; _l.simgpu_inside(1)
        try: out = orig(ks, *_wrap(tensor_args, args), **kw)
        except RuntimeError as e:
            if "cudnn" not in str(e).lower() or write: raise
            with _quiet(): r = cpu_fn(*tree_map(_to_cpu, args), **tree_map(_to_cpu, kw))      # for the shapes
            out = tree_map(lambda c: torch.empty_strided(c.size(), c.stride(), dtype=c.dtype, device=torch.device("cuda", dev)) if isinstance(c, torch.Tensor) else c, r)
        finally: _tl.inside = False; _l.simgpu_inside(0)
        if rng: done()
        if dev is None: dev = first_cuda(out)
        if dev is None: return out
        if custom is NotImplemented: _missing("aten." + name); return out
        with _quiet():
            try: cargs, ckw = tree_map(_to_cpu, args), tree_map(_to_cpu, kw)
            except NotImplementedError: _missing("aten." + name + " (not strided)"); return out
            outs = list(out) if isinstance(out, (tuple, list)) else [out]
            couts = [tree_map(_to_cpu, o) if i >= len(fresh) or fresh[i] else None for i, o in enumerate(outs)]
            if random:
                i = names.index("generator")
                if i < len(cargs): cargs = cargs[:i]
                ckw.pop("generator", None)
        single = isinstance(out, torch.Tensor)
        def run():                          # must not hold device tensors: a graph node does not keep memory alive
            with _quiet():
                if custom: return custom(rng, _by_name(op, cargs, ckw), couts)
                r = _compute(cpu_fn, cargs, {**ckw, "generator": rng()} if random else ckw)
                if single: r = [r]
                for c, x in zip(couts, () if r is None else r):
                    if c is not None: _assign(tree_leaves(c), tree_leaves(x))
        _submit(dev, run)
        return out
    lib.impl(name, data_dependent if name in DATA else impl, "CUDA", with_keyset=True)

_lib = None
def enable(skip=()):                        # skip: aten operators to leave alone
    global _lib
    if _lib: return
    import warnings
    if d := os.environ.get("TORCHINDUCTOR_CACHE_DIR"): os.environ["TORCHINDUCTOR_CACHE_DIR"] = d + "-values"     # without values, folded constants are garbage
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _lib = torch.library.Library("aten", "IMPL")
        have = {n[6:] for n in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA") if n.startswith("aten::")}
        for n in sorted(have | {"copy_"}):
            if n not in skip and (n in REPLACE or not SKIP.match(n)): _override(_lib, n)
    after_import("triton.compiler.compiler", _hook_triton)
    new = os.path.exists(os.path.join(os.path.dirname(torch.__file__), "_inductor/runtime/static_triton_launcher.py"))
    after_import(f"torch._inductor.runtime.static_{'triton' if new else 'cuda'}_launcher", _hook_static)
    _l.simgpu_values(_resolve, _python)
    after_import("torch._dynamo.trace_rules", lambda m: m.add(__name__))     # Dynamo must not compile these frames
    _hook_graph()
    torch.backends.cudnn.enabled = False    # its kernels compute nothing; convolutions and attention take torch's own kernels
    torch.backends.cuda.enable_cudnn_sdp(False)
