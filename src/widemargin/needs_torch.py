"""Every room that computes with torch imports this first, so that one sentence says what to install where torch is missing."""

from widemargin import extras

extras.load("torch")
