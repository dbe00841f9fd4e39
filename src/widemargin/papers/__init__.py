"""Every figure and table of the five papers, by one command."""

from .reproduction import REPRODUCTIONS, Job, Outcome, Reproduction, Verdict, find, reproduction, run

__all__ = ["REPRODUCTIONS", "Job", "Outcome", "Reproduction", "Verdict", "find", "reproduction", "run"]
