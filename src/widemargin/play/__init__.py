"""The playground: one page on which a network trains and a proof of the largest margin appears beside it.

`page/` is the page itself, plain modules without a build step. `page_text` puts it into one file that works offline and from a
file; `Server` offers it on this computer. docs/play.md shows it.
"""

from .bundle import page_text
from .links import link
from .recorded import replay
from .server import Server

__all__ = ["Server", "link", "page_text", "replay"]
