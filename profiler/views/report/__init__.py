"""Reports: ``summarize`` says what there is to say, ``sections`` in words, ``text.render`` prints
them."""

from .summary import Summary, summarize
from .text_page import Style

__all__ = ["Style", "Summary", "summarize"]
