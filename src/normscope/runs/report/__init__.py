"""The page that a run leaves behind: report.html, which needs nothing but a browser."""
