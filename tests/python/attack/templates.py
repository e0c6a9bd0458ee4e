"""The lines of which programs are made, with holes.

Holes are filled from left to right with what the program holds at that moment. A tensor:

========= ===================================================================================
``t``     any; ``f``: of floats; ``w``: of floats, no gradient is asked of it; ``W``: likewise,
          with 8 rows or more; ``m``: a matrix of floats; ``M``: likewise, with 8 rows or more;
          ``q``: of floats, with four dimensions; ``i``: of int64; ``z``: complex
``apart`` likewise, of another storage than those before it in the line
``g``     one that remembers how it was made; ``own``: likewise, and no view; ``leaf``: one that
          collects a gradient
``1``     the line's first; ``same``: of its type and shape; ``kin``: of its type; ``mate``: a
          matrix of its type and width
``t!``    one that dies: its name is not used any more
========= ===================================================================================

A number or the like: ``d`` a dimension of the first tensor, ``k`` 1 to 5, ``c`` a float, ``s`` a
seed, ``shape``, ``dtype``, ``scale``. ``a|b|c`` is one of these.

A name to bind: ``o`` for a tensor, and ``n`` (numpy's array), ``p`` (a pointer), ``v`` (a value),
``st`` (a storage), ``l`` (a list), ``gen``, ``net``, ``opt``, ``cs`` (a stream); with an
exclamation mark one of these that there is. ``opt!net`` is the network of the optimizer that
follows.

PURE lines only bind names to results of operators that write nothing and draw no random numbers.
"""

from __future__ import annotations

UNARY = (
    "sin|cos|tanh|sigmoid|abs|neg|relu|erf|square|exp2|sign|round|floor|atan|sinc|clone|frac|"
    "positive|ones_like|zeros_like|isnan|isfinite|logical_not|rsqrt|log1p"
)
DTYPES = (
    "torch.float32|torch.bfloat16|torch.float64|torch.int64|torch.bool|torch.complex64|"
    "torch.int32|torch.float16"
)

# Weight, line.
PURE: list[tuple[float, str]] = [
    (9, "{o} = torch.{" + UNARY + "}({f})"),
    (8, "{o} = torch.{add|sub|mul|maximum|minimum|atan2|hypot|copysign|fmax}({f}, {same})"),
    (4, "{o} = {t} {+|-|*} {same}"),
    (3, "{o} = {t} {<|>|==|!=|<=} {same}"),
    (3, "{o} = {f} * {c} + {same}"),
    (3, "{o} = torch.addcmul({f}, {same}, {same}, value={c})"),
    (2, "{o} = torch.lerp({f}, {same}, {c})"),
    (3, "{o} = torch.where({f} > {c}, {1}, {same})"),
    (2, "{o} = torch.where({f} > {c}, {c}, {1})"),
    (3, "{o} = {f}.{softmax|log_softmax|cumsum|logsumexp|sum|mean|amax|norm}({d})"),
    (3, "{o} = {f}.{sum|mean|amax|amin|std|var}({d}, keepdim=True)"),
    (2, "{o} = {f} - {1}.mean({d}, keepdim=True)"),
    (2, "{o} = {t}.{sum|any|all|argmax|argmin|max}()"),
    (2, "{o}, {o} = in_order({f}, '{sort|max|min|cummax|median}', {d})"),
    (2, "{o}, {o} = torch.topk({f}, 1, {d})"),
    (1, "{o} = {f}.argsort({d}, stable=True)"),
    (3, "{o} = {m} @ {mate}.t()"),
    (2, "{o} = torch.addmm({m}, {1} @ {mate}.t(), {1})"),
    (2, "{o} = F.linear({m}, {mate})"),
    (2, "{o} = F.layer_norm({f}, {1}.shape[-1:])"),
    (1, "{o} = F.group_norm({q}, 2)"),
    (2, "{o} = F.{gelu|silu|elu|softplus|leaky_relu|hardtanh|mish|relu6|logsigmoid}({f})"),
    (2, "{o} = F.conv2d({q}, {q}.detach()[:2, :, :3, :3].contiguous(), padding=1)"),
    (1, "{o} = F.{max_pool2d|avg_pool2d}({q}, 2)"),
    (1, "{o} = F.interpolate({q}, scale_factor=0.5)"),
    (1, "{o} = F.pad({f}, (1, 2), value={c})"),
    (2, "{o} = torch.cat([{t}, {same}], {d})"),
    (2, "{o} = torch.stack([{t}, {same}])"),
    (1, "{o} = torch.cat([{t}, {same}, {1}], {d})"),
    (2, "{o} = {t}.to({" + DTYPES + "})"),
    (2, "{o} = {t}.{clone|contiguous|resolve_conj|flatten|double|float}()"),
    (2, "{o} = {t}.{flip|roll}({d})"),
    (1, "{o} = {t}.repeat({k}, *[1] * ({1}.dim() - 1))"),
    (2, "{o} = {t}.index_select(0, torch.arange({1}.shape[0] // 2, device=dev))"),
    (2, "{o} = {W}[{i}.clamp(0, {1}.shape[0] - 1).flatten()[:40]]"),
    (2, "{o} = {t}.gather({d}, torch.zeros_like({1}, dtype=torch.int64))"),
    (1, "{o} = {t}[{1}.real > 0] if {1}.is_complex() else {1}[{1} > 0]"),
    (1, "{o} = {W}.take(torch.arange(7, device=dev))"),
    (2, "{o} = F.embedding({i}.clamp(0, 3).flatten()[:64], {M}[:4])"),
    (1, "{o} = F.one_hot({i}.clamp(0, 7).flatten()[:64], 8)"),
    (1, "{o} = {f}.nan_to_num(0.1, 1.0, -1.0).clamp(-3, 3)"),
    (3, "{o} = {f}.{clamp|clip}(-2, 2)"),
    (1, "{o} = {t}.masked_fill({1} == 0, {k})"),
    (1, "{o} = {m}.{tril|triu}()"),
    (1, "{o} = torch.einsum('ij,kj->ik', {m}, {mate})"),
    (1, "{o} = torch.bincount({i}.abs().flatten() % 11)"),
    (1, "{o} = torch.complex({f}.float(), {1}.float())"),
    (1, "{o} = {z}.{abs|angle|conj_physical|exp}()"),
    (1, "{o} = torch._foreach_add([{f}, {same}], {c})[0]"),
    (1, "{o} = torch.func.vmap(lambda row: row * row.sum())({m})"),
]

# Operators that can run in slices; results are new memory, so threads may read what others read.
SLICED: list[tuple[float, str]] = [
    (6, "{o} = torch.{abs|neg|cos|sin|exp|erf|relu|sigmoid|tanh|sqrt|reciprocal|log}({f})"),
    (8, "{o} = torch.{add|sub|mul|div|maximum|minimum}({f}, {same})"),
    (3, "{o} = {f} {+|-|*|/|<|>|==|!=|<=|>=} {c}"),
    (3, "{o} = {t} {<|>|==|!=|<=|>=} {same}"),
    (2, "{o} = torch.add({f}, {same}, alpha={c})"),
    (3, "{o} = torch.where({f} > {c}, {1}, {same})"),
    (2, "{o} = torch.{addcmul|addcdiv}({f}, {same}, {same}, value={c})"),
    (2, "{o} = torch.lerp({f}, {same}, {c})"),
    (2, "{o} = {f}.clamp({-1|-0.5}, {0.5|2})"),
    (1, "{o} = {f} ** {2|3|0.5|-1}"),
    (2, "{o} = {t}.masked_fill({1} == 0, {k})"),
    (3, "{o} = F.{gelu|silu|elu|softplus|leaky_relu|hardtanh|mish|hardswish|hardsigmoid}({f})"),
    (1, "{o} = F.threshold({f}, {c}, {k})"),
    (3, "{o} = {f}.{softmax|log_softmax}({d})"),
    (3, "{o} = F.layer_norm({f}, {1}.shape[{1:|-1:}])"),
    (2, "{o} = F.{max_pool2d|avg_pool2d}({q}, 2)"),
    (2, "{o} = F.embedding({i}.clamp(0, 7).flatten(), {M})"),
    # Each place once: a GPU adds in any order.
    (2, "{o} = {M}.index_select(0, torch.arange(200, device={1}.device) * 7 % 8)"),
    (
        2,
        "{o} = {m}.gather({0|1}, "
        "(torch.arange({1}.numel(), device={1}.device) % min({1}.shape)).view_as({1}))",
    ),
    (
        2,
        "{o} = {m}.clone().index_add_(0, "
        "torch.arange(len({1}), device={1}.device).flip(0), {same}, alpha={1|2})",
    ),
    (
        2,
        "{o} = {m}.clone().scatter_add_(0, torch.arange("
        "len({1}), device={1}.device).flip(0).unsqueeze(1).expand_as({1}), {same})",
    ),
    (2, "{o} = torch.cat([{t}, {same}], {d})"),
    (2, "{o} = torch.cat([{f}, {same}, {1}], {0|-1})"),
    (3, "{o} = {t}.to({" + DTYPES + "}, copy=True)"),
    (2, "{o} = {t}.clone({|memory_format=torch.contiguous_format})"),
    (1, "{o} = {q}.clone(memory_format=torch.channels_last)"),
    (3, "{o} = {f} {+|-|*} {1}[{0|:1|-1:|..., :1}]"),
    (2, "{o} = {W} * {1}[:1].expand_as({1})"),
    (2, "{o} = {f} + {1}[..., :1].expand_as({1})"),
    (2, "{o} = {m}.t() {+|*} {same}.t()"),
    (2, "{o} = {m}.t() {+|*} {1}.t().contiguous()"),
    (2, "{o} = {f}[{1:|:-1|..., 1:}] {+|*} {1}[{1:|:-1|..., 1:}]"),
    (1, "{o} = {m}[:1].expand(96, -1) {+|>} {c}"),
    (
        3,
        "{o} = (lambda x: (lambda y: torch.autograd.grad(y, x, y)[0])("
        "F.{gelu|silu|elu|softplus|leaky_relu|hardtanh|mish|hardswish|relu|logsigmoid}(x)"
        "))({f}.detach().requires_grad_())",
    ),
    (
        2,
        "{o} = (lambda x: (lambda y: torch.autograd.grad(y, x, y)[0])("
        "x.{softmax|log_softmax}({-1|0})"
        "))({f}.detach().requires_grad_())",
    ),
    (
        1,
        "{o} = (lambda x: (lambda y: torch.autograd.grad(y, x, y)[0])("
        "F.{max_pool2d|avg_pool2d}(x, 2)))({q}.detach().requires_grad_())",
    ),
    (
        3,
        "{o} = (lambda x: torch.autograd.grad(F.cross_entropy("
        "x{|.float()|.double()|.bfloat16().float()}, "
        "torch.arange(len(x), device=x.device) % x.shape[1], ignore_index={-100|0|1}, "
        "reduction={'mean'|'sum'}), x)[0])({m}.detach().requires_grad_())",
    ),
    (
        1,
        "{o} = (lambda x: torch.autograd.grad(F.cross_entropy(x, torch.arange(len(x), device=dev)"
        " % x.shape[1], reduction='{mean|sum}'), x)[0])({m}.detach().requires_grad_())",
    ),
]

SLICED_WRITES: list[tuple[float, str]] = [
    (4, "{w}.{add_|mul_|sub_|div_}({c})"),
    (4, "{w}.{add_|mul_|sub_|div_}({same})"),
    (3, "{w}.{copy_|add_|mul_}({1})"),
    (3, "{w}.copy_({kin})"),
    (3, "{t}.copy_({same})"),
    (2, "{w}.copy_({1}[{0|:1|..., :1}].clone())"),
    (2, "{w}.{exp_|neg_|relu_|sigmoid_|tanh_|zero_}()"),
    (2, "{t}.fill_({k})"),
    (2, "{w}.clamp_(-1, 1)"),
    (2, "{w}.lerp_({same}, {c})"),
    (2, "{w}.{addcmul_|addcdiv_}({same}, {same}, value={c})"),
    (2, "{w}.masked_fill_({1} > {c}, {c})"),
    (3, "{w}[{1:|:-1|..., 1:|..., ::2|::2}].{mul_|add_}({c})"),
    (2, "{w}[1:].{add_|copy_}({same}[{1:|:-1}])"),
    (2, "{W}[:4].{add_|copy_|mul_}({1}[4:8])"),
    (2, "{w}[1:].{add_|copy_}({1}[:-1])"),
    (2, "{w}.{sub_|add_|copy_}({1}[{0|:1|-1:|..., :1}])"),
    (2, "{w}.mT.{add_|mul_}({same}.mT)"),
    (2, "{w}.mT.{add_|copy_}({same}.mT.contiguous())"),
    (2, "{w}.view(-1)[3:].{mul_|add_|fill_}({c})"),
    (2, "{w}[:1].expand(5, *{1}.shape[1:]).mul_({c})"),
    (2, "torch.{add|mul|sub|maximum|div}({f}.detach(), {same}.detach(), out={apart})"),
    (2, "torch.{add|mul}({f}.detach(), {same}.detach(), out={1}.detach())"),
    (2, "torch.{sin|tanh|neg|exp}({f}.detach(), out={apart})"),
    (1, "torch.{sin|neg}({f}.detach(), out={apart}.mT)"),
    (2, "torch.cat([{w}, {same}], out={apart})"),
    (2, "foreach('{add_|mul_}', [{w}, {w}], {c})"),
    (1, "F.{relu|elu|leaky_relu|hardtanh|silu}({w}, inplace=True)"),
]

VIEWS: list[tuple[float, str]] = [
    (3, "{o} = {t}[{1}.shape[0] // 4:]"),
    (2, "{o} = {t}[..., ::2]"),
    (2, "{o} = {t}[..., 1:-1]"),
    (3, "{o} = {t}.{t|mT|detach}()"),
    (2, "{o} = {t}.transpose(0, {d})"),
    (2, "{o} = {t}.view(-1)"),
    (1, "{o} = {t}.view(torch.uint8)"),
    (1, "{o} = {w}.view(torch.int32)"),
    (1, "{o} = {t}[:1].expand(5, *{1}.shape[1:])"),
    (1, "{o} = {t}.as_strided((16, 8), (9, 1), 3)"),
    (1, "{o} = {t}.unfold(-1, 4, 2)"),
    (1, "{o} = {t}.unsqueeze({d})"),
    (1, "{o} = {t}.diagonal()"),
    (1, "{o} = {t}.chunk(2)[-1]"),
    (2, "{o} = {z}.conj()"),
    (1, "{o} = {z}.imag"),
    (1, "{o} = torch.view_as_real({z})"),
    (1, "{o} = {z}.conj().imag"),
    (1, "{o} = torch.empty(0, dtype={t}.dtype, device=dev).set_({1}.detach())"),
    (1, "{o} = {t}.data"),
    (1, "{o} = {t}"),
]

WRITES: list[tuple[float, str]] = [
    (4, "{w}.{add_|mul_|sub_}({c})"),
    (3, "{t}.{add_|mul_|copy_}({same})"),
    (3, "{w}.copy_({kin})"),
    (2, "{t}.copy_({1}.clone())"),
    (2, "{w}.{sin_|tanh_|neg_|relu_|zero_|sigmoid_|abs_|floor_}()"),
    (2, "{t}.fill_({k})"),
    (2, "{t}[{k}] = {k}"),
    (2, "{w}[..., ::2] += {c}"),
    (2, "{t}[1:] = {1}[:-1].clone()"),
    (2, "{w}.t()[:3].mul_({c})"),
    (2, "{w}.addcmul_({same}, {same}, value={c})"),
    (1, "{w}.lerp_({same}, {c})"),
    (1, "{w}.addcdiv_({same}, {same}.square() + 1)"),
    (2, "{w}.masked_fill_({1} > {c}, {c})"),
    (1, "{W}.index_add_(0, torch.arange(2, device=dev), {1}[2:4].clone())"),
    (1, "{W}.index_fill_(0, torch.arange(2, device=dev), {c})"),
    (1, "{W}.index_copy_(0, torch.arange(2, device=dev), {1}[2:4].clone())"),
    (1, "{W}.scatter_(0, torch.zeros_like({1}, dtype=torch.int64), {1}.clone())"),
    (1, "{W}.scatter_add_(0, torch.ones_like({1}, dtype=torch.int64), {same}.clone())"),
    (1, "{w}[{1} > {c}] = {c}"),
    (1, "{W}.index_put_((torch.arange(3, device=dev),), {1}[4:7].clone(), accumulate=True)"),
    (2, "torch.{add|mul|sub|maximum}({f}.detach(), {same}.detach(), out={apart})"),
    (1, "torch.{sin|tanh|neg}({f}.detach(), out={apart})"),
    (1, "torch.cumsum({f}.detach(), 0, out={apart})"),
    (1, "torch.mm({m}.detach(), {mate}.detach().t(), out={apart})"),
    (1, "torch.cat([{w}, {same}], out={apart})"),
    (2, "foreach('{add_|mul_}', [{w}, {w}], {c})"),
    (2, "foreach('addcmul_', [{w}], [{same}], [{same}])"),
    (1, "foreach('copy_', [{w}], [{same}])"),
    (2, "foreach('lerp_', [{w}], [{same}], {c})"),
    (2, "{w}.{normal_|uniform_|exponential_|bernoulli_}()"),
    (1, "{w}.random_(0, 9)"),
    (1, "{w}.clamp_(-2, 2)"),
    (1, "{w}.{cumsum_|sort}({d})"),
    (1, "{w}.{t_|squeeze_}()"),
    (1, "{w}.transpose_(0, {d})"),
    (1, "{w}.detach().conj().copy_({1})"),
    (1, "{z}.conj().mul_(2)"),
    (1, "{z}.imag.add_(1)"),
    (1, "{w}.view(torch.uint8)[..., :2] = {k}"),
]

RANDOM: list[tuple[float, str]] = [
    (2, "{o} = F.dropout({f}, 0.4)"),
    (1, "{o} = {f} + torch.randn_like({1})"),
    (1, "{o} = torch.randn({f}.shape, device=dev) * 2"),
    (1, "{o} = torch.rand(40, 64, device=dev).bernoulli() * {c}"),
    (1, "torch.manual_seed({s})"),
    (1, "{o} = torch.randperm(700, device=dev)"),
    (1, "{o} = torch.multinomial({m}.detach().float().abs().nan_to_num(1, 1, 1) + 0.1, 2)"),
    (2, "{gen} = torch.Generator(dev).manual_seed({s})"),
    (2, "{o} = torch.{rand|randn}(30, 64, generator={gen!}, device=dev) * 2"),
    (1, "{w}.normal_(generator={gen!})"),
    (1, "{o} = F.rrelu({f}, training=True)"),
]

FACTORIES: list[tuple[float, str]] = [
    (9, "{o} = fresh({s}, {shape}, dtype={dtype}, dev=dev)"),
    (4, "{o} = fresh({s}, {shape}, dev=dev)"),
    (1, "{o} = torch.{zeros|ones}({shape}, device=dev)"),
    (1, "{o} = torch.full(({shape}), {c}, device=dev)"),
    (1, "{o} = torch.arange(2000, device=dev)"),
    (1, "{o} = torch.zeros_like({t})"),
    (1, "{o} = {t}.new_full((30, 64), {k})"),
    (1, "{o} = torch.eye(40, device=dev)"),
]

MEMORY: list[tuple[float, str]] = [
    (6, "del {t!}"),
    (1, "del {t!}, {t!}"),
    (1, "{t}.data = {kin}.detach().clone()"),
    (1, "{w}.data = {kin}.detach()"),
    (1, "{w}.set_({kin}.detach())"),
    (1, "rebase({w}, {kin})"),
    (1, "cut({w})"),
    (1, "regrow({w}, {1}.shape[0] + {k}, {c})"),
    (1, "torch.utils.swap_tensors({w}, {w})"),
    (1, "{t}.untyped_storage().fill_({k})"),
    (1, "{t}.untyped_storage()[{k}] = {k}"),
    (1, "{v} = {t}.untyped_storage()[{k}]"),
    (1, "{t}.untyped_storage().copy_({same}.untyped_storage())"),
    (1, "{o} = copy.deepcopy({t}.detach())"),
    (1, "{o} = {saved|pickled}({t}.detach())"),
    (1, "{l} = saved([{t}.detach(), {t}.detach()])"),
    (1, "{o} = saved({t}.detach())"),
    (1, "{l} = [{t}, {t}]"),
    (1, "{l} = Ring({t}, {t})"),
    (1, "del {l!}"),
    (1, "gc.collect(0)"),
    (1, "{o} = exported({w})"),
    (1, "{t}.untyped_storage().byteswap(torch.float32)"),
    (1, "{v} = {t}.flatten()[:3].tolist()"),
    (1, "{v} = {t}.flatten()[0].item()"),
    (1, "reclaim()"),
    (2, "check()"),
]

SLICES: list[tuple[float, str]] = [
    (2, "{st} = part({t}, {k} * 16)"),
    (1, "{st!}[0] = {k}"),
    (1, "{st!}.fill_({k})"),
    (1, "{st!}.copy_({t}.clone().untyped_storage()[0:{st!}.nbytes()])"),
]

POINTERS: list[tuple[float, str]] = [
    (2, "{n} = array({w})"),
    (3, "{n!} += 1"),
    (2, "{n!}[...] = {k}"),
    (1, "{n!}.flat[:9] = {k}"),
    (1, "{o} = torch.from_numpy({n!})"),
    (1, "{o} = torch.from_numpy(numpy.arange(1500.0))"),
    (1, "{o} = torch.frombuffer(bytearray(b'abcd' * 2000), dtype=torch.float32)"),
    (2, "{p} = Pointer({w})"),
    (3, "{p!}.write({s}, {k}, 64)"),
    (1, "{v} = {p!}.read()"),
    (1, "{o} = {t}.detach().clone().share_memory_()"),
    (1, "{w}.apply_(lambda x: x + 1)"),
]

AUTOGRAD: list[tuple[float, str]] = [
    (2, "{w}.requires_grad_()"),
    (3, "{g}.float().square().mean().backward()"),
    (1, "{g}.sum().backward(retain_graph=True)"),
    (1, "{o} = torch.autograd.grad({g}.float().square().sum(), {leaf})[0]"),
    (
        1,
        "{o} = torch.autograd.grad({g}.float().square().sum(), {leaf}, create_graph=True)[0]",
    ),
    (1, "{leaf}.grad = None"),
    (1, "{leaf}.grad.mul_({c})"),
    (1, "{o} = {leaf}.grad"),
    (1, "{o} = {leaf} * {kin}"),
    (1, "{own}.register_hook(lambda gradient: gradient * {c})"),
    (1, "{leaf}.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))"),
    (1, "{g}.detach_()"),
    (1, "with torch.no_grad(): {leaf}.add_({c})"),
    (1, "with torch.inference_mode(): {o} = {f} * 2"),
    (1, "with torch.autograd.graph.save_on_cpu(): {o} = {g}.sin() * {1}"),
    (1, "{o} = torch.utils.checkpoint.checkpoint(lambda x: x.sin() * x, {f}, use_reentrant=False)"),
]

NETWORKS: list[tuple[float, str]] = [
    (3, "{net} = net('{mlp|conv|drop|embed|block}', {s}, dev, {scale})"),
    (2, "{o} = feed({net!}, {f})"),
    (2, "{opt} = optimizer('{SGD|Adam|AdamW|RMSprop|Adagrad|NAdam}', {net!}, {True|False})"),
    (
        5,
        "{v} = train({opt!net}, {opt!}, {f}, '{plain|zeros|accumulate|checkpoint|reentrant|"
        "save_on_cpu|packed|autocast|hooks|double|clip}')",
    ),
    (1, "{net!}.{eval|train}()"),
    (1, "{opt!}.{step|zero_grad}()"),
    (1, "{net} = copy.deepcopy({net!})"),
    (1, "{net!}.load_state_dict(saved({net!}.state_dict()))"),
    (1, "{net!}.{bfloat16|float}()"),
    (1, "del {opt!}"),
]

STREAMS: list[tuple[float, str]] = [
    (2, "{cs} = torch.cuda.Stream()"),
    (4, "{o} = on_stream({cs!}, lambda x: x.sin() * 2, {f}, {True|False})"),
    (3, "{o} = on_stream({cs!}, lambda x: x.detach() + {c}, {f}, {True|False}); del {1}"),
    (2, "on_stream({cs!}, lambda x: x.mul_({c}), {w}, {True|False})"),
    (2, "with torch.cuda.stream({cs!}): torch.cuda.current_stream().synchronize()"),
    (2, "record({t}, {cs!})"),
]

FAILURES: list[tuple[float, str]] = [
    (2, "{o} = {m} @ {m}[1:, 1:-2]"),
    (1, "{w}.add_({1}[1:].flatten()[:-1])"),
    (1, "{o} = torch.cat([{t}, {t}[..., :1]], 1)"),
    (1, "{o} = {t}.view(7, 11)"),
    (1, "{t}[10 ** 6] = 1"),
    (1, "torch.sin({f}, out={i})"),
    (1, "{o} = F.linear({f}, {1}[..., 1:])"),
]
