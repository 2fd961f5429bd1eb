"""Shared rendering: number formatting, axis scales, SVG charts and self-contained HTML pages."""
