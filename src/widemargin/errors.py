"""The one exception for bad input. It comes before everything else, so that every room can raise it."""


class InputError(ValueError):
    """Bad input. The message is one sentence that says what is wrong, where, and what to do."""
