"""transformers' ``Trainer``, and TRL's trainers, which take the same callbacks."""

from __future__ import annotations

from transformers import TrainerCallback

from ._session import SessionCallback


class MemprofCallback(SessionCallback, TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Profiles ``trainer.train()``; of one that an exception ends, up to some seconds before.

        Trainer(model, callbacks=[MemprofCallback("run.{rank}.memprof", steps="steps.jsonl")])

    The arguments are those of ``memprof.profile``.
    """
