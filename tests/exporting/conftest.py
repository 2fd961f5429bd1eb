"""A browser for the exported pages."""

from tests.browser import browser as browser
