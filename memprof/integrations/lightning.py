"""Lightning's ``Trainer``."""

from __future__ import annotations

from lightning.pytorch import Callback  # type: ignore[import-not-found, unused-ignore]

from ._session import SessionCallback


class MemprofCallback(SessionCallback, Callback):  # type: ignore[misc, unused-ignore]
    """Profiles ``trainer.fit()``, whatever ends it.

        names = {"path": "run.{rank}.memprof", "steps": "steps.{rank}.jsonl"}
        Trainer(callbacks=[MemprofCallback(**names)])

    The arguments are those of ``memprof.profile``.
    """
