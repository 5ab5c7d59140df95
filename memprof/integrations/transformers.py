"""transformers' ``Trainer``, and TRL's trainers, which take the same callbacks."""

from __future__ import annotations

from transformers import TrainerCallback

from ._session import SessionCallback


class MemprofCallback(SessionCallback, TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Profiles ``trainer.train()``; of one that an exception ends, up to some seconds before.

        names = {"path": "run.{rank}.memprof", "steps": "steps.{rank}.jsonl"}
        Trainer(model, callbacks=[MemprofCallback(**names)])

    The arguments are those of ``memprof.profile``.
    """
