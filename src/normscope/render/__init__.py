"""What every display shares: words for numbers, scales and charts, and pages that need nothing but a browser."""
