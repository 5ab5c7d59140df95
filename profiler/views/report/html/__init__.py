"""Pages for the browser, see ``page.py``. No module here needs torch."""

from .page import HtmlPage, build_page, report_page, write_diff, write_page, write_report

__all__ = ["HtmlPage", "build_page", "report_page", "write_diff", "write_page", "write_report"]
