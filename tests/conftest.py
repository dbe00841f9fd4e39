"""Puts this folder on the path, so that tests in any subfolder can import `checks`."""
