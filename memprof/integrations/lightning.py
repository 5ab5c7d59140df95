"""Lightning's ``Trainer``."""

from __future__ import annotations

from lightning.pytorch import Callback  # type: ignore[import-not-found, unused-ignore]

from ._session import SessionCallback


class MemprofCallback(SessionCallback, Callback):  # type: ignore[misc, unused-ignore]
    """Profiles ``trainer.fit()``, whatever ends it.

        Trainer(callbacks=[MemprofCallback("run.{rank}.memprof", steps="steps.jsonl")])

    The arguments are those of ``memprof.profile``.
    """
