"""Pages for the browser, see ``page.py``. No module here needs torch."""

from .page import build_page, report_page, write_report

__all__ = ["build_page", "report_page", "write_report"]
