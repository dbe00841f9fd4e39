"""`widemargin play`: the playground in a browser, or as one file."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from widemargin import data as datasets
from widemargin.types import InputError, write_atomically

from .options import Command, check_kept, check_page_kept, check_writable, integer, readable
from .screen import say


def play(options: argparse.Namespace) -> int:
    """Serve the playground on this computer until Ctrl-C, or write it to a file."""
    from widemargin import play as playground

    if options.out is not None:
        check_writable(options.out)
        check_kept(options.out, [options.data])
        check_page_kept(options.out)
        for option, given in (("--data", options.data), ("--run", options.run_folder)):
            if given is not None:  # a file has no place for them
                raise InputError(f"--out writes the page without points of yours; leave {option} out, or --out")
        write_atomically(Path(options.out), playground.page_text().encode())
        say(f"the playground is written to {options.out}; open it in a browser")
        return 0
    address = ""
    if options.data is not None:
        data = datasets.load(options.data, options.label)
        for note in data.notes:
            say(f"{data.name}: {note}")
        address = playground.link(data, bias=options.bias)
        say(f"{data}: coordinates are rounded to multiples of 1/64")
    run = None
    if options.run_folder is not None:
        if options.data is not None:
            raise InputError("--run has its own data; leave --data out")
        run = playground.replay(options.run_folder)
        address = "?run"
    try:
        with playground.Server(options.port, run) as server:
            address = server.address + address
            print(address, flush=True)
            if options.browser:
                webbrowser.open(address)
            say("serving the playground on this computer; Ctrl-C ends it")
            server.serve_forever(poll_interval=0.1)
    except KeyboardInterrupt:
        say("ended")
    return 0


def add(command: Command) -> None:
    parser = command("play", play, "watch training race a proof, in a browser")
    parser.add_argument(
        "--data", metavar="DATA", help="points of the plane to begin with: a file, or a spec such as disks:d=2"
    )
    readable(parser)
    parser.add_argument(
        "--bias", action=argparse.BooleanOptionalAction, default=False, help="neurons have a bias [--no-bias]"
    )
    parser.add_argument("--run", metavar="RUN", dest="run_folder", help="replay a folder of train --out RUN --weights")
    parser.add_argument(
        "--port", metavar="N", type=integer(0, 65535), default=0, help="of this computer [any that is free]"
    )
    parser.add_argument(
        "--browser", action=argparse.BooleanOptionalAction, default=True, help="open a browser [--browser]"
    )
    parser.add_argument("--out", metavar="PAGE.html", help="write the page as one file instead, which works offline")
