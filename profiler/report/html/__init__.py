"""Pages for the browser: one self-contained HTML file each, opened without a server or a network.

``page.py`` makes a file of a title, a payload and assets; ``payload.py`` says what the report
knows, as plain data; ``assets/`` draws it. No module here needs torch.
"""

from .page import Page, build_page, write_page
from .pages import report_page, write_diff, write_report

__all__ = ["Page", "build_page", "report_page", "write_diff", "write_page", "write_report"]
