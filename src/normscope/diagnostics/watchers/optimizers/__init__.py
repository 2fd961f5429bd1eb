"""What each step of an optimizer has to work with, and what it changes."""
