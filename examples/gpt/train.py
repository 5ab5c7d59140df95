"""Train a small GPT on the Python standard library, compiled by memprof.

    python examples/gpt/train.py --steps 300

Prints the loss on the way and, at the end, where the compiled code's memory went.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from data import Batches, Corpus, batches
from model import GPT, Config

import memprof


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    config = Config(context=args.context, width=args.width, layers=args.layers)
    corpus = Corpus()
    model = GPT(config).to(args.device)
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{corpus.files} files of the standard library, "
        f"{len(corpus.train) / 1e6:.1f} MB to train on, "
        f"{len(corpus.held_out) / 1e6:.1f} MB held out"
    )
    print(f"{parameters / 1e6:.2f} million parameters, torch {torch.__version__}, {args.device}")
    compiled = torch.compile(model, backend=args.backend)
    with memprof.profile() as session:
        train(compiled, batches(corpus.train, args.batch, args.context, args.seed), args)
        held_out = batches(corpus.held_out, args.batch, args.context, args.seed)
        print(f"held-out loss {evaluate(compiled, held_out, args):.3f} nats per byte\n")
    memprof.report()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    session.save(args.out)
    page = args.out.parent / f"{args.out.name.partition('.')[0]}.html"
    memprof.load(args.out).to_html(page)
    print(f"\nThe profile is in {args.out}; `memprof report {args.out}` prints this again.")
    print(f"Open {page} in a browser: the same at every instant of the run, in one offline file.")


def train(model: torch.nn.Module, data: Batches, args: argparse.Namespace) -> None:
    """AdamW with linear warm-up and cosine decay."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=args.steps, pct_start=0.1, cycle_momentum=False
    )
    model.train()
    start = last = time.perf_counter()
    print("compiling, which the first step waits for ...", flush=True)
    for step in range(1, args.steps + 1):
        tokens, targets = next(data)
        loss = model(tokens.to(args.device), targets.to(args.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        now = time.perf_counter()
        if step == 1 or step % args.log_every == 0 or step == args.steps:
            print(
                f"step {step:4d}/{args.steps}  loss {loss.item():.3f}  "
                f"{(now - last) * 1e3:5.0f} ms  {now - start:5.1f} s",
                flush=True,
            )
        last = now


@torch.no_grad()
def evaluate(model: torch.nn.Module, data: Batches, args: argparse.Namespace) -> float:
    """Mean loss over a few held-out batches, through a graph without a backward."""
    model.eval()
    losses = []
    for _ in range(8):
        tokens, targets = next(data)
        losses.append(model(tokens.to(args.device), targets.to(args.device)).item())
    return sum(losses) / len(losses)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300, help="training steps (300)")
    parser.add_argument("--batch", type=int, default=12, help="sequences a step (12)")
    parser.add_argument("--context", type=int, default=128, help="bytes a sequence (128)")
    parser.add_argument("--width", type=int, default=192, help="width of the model (192)")
    parser.add_argument("--layers", type=int, default=4, help="blocks (4)")
    parser.add_argument("--lr", type=float, default=3e-3, help="highest learning rate (0.003)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (0)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    parser.add_argument("--backend", default="memprof", help="torch.compile backend (memprof)")
    parser.add_argument("--log-every", type=int, default=25, help="steps between lines (25)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/gpt.memprof"), help="profile file to write"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
