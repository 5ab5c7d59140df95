"""Reports: ``summarize`` says what there is to say, ``sections`` in words, ``text.render`` prints
them."""

from .page import Style
from .summary import Summary, summarize

__all__ = ["Style", "Summary", "summarize"]
